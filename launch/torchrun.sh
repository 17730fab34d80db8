#!/usr/bin/env bash
# One job on this machine under torchrun: launch/torchrun.sh RECIPE [key=value …] [--np N] [--print]
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

torchrun=$(program torchrun)
start "$torchrun" "it comes with torch: 'make setup'" \
    env "$threads" "$torchrun" --standalone --nproc-per-node "$processes" "${run[@]}"
