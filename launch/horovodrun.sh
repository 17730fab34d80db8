#!/usr/bin/env bash
# One job on this machine under horovodrun: launch/horovodrun.sh RECIPE [key=value …] [--np N] [--print]
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

# --gloo: without it horovodrun hands over to mpirun where it can, and mpirun.sh is for that.
horovodrun=$(program horovodrun)
start "$horovodrun" "setup/horovod.sh builds it" \
    env "$threads" "$horovodrun" --gloo -np "$processes" "$python" "${run[@]}"
