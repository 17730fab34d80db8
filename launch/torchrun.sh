#!/usr/bin/env bash
# One job under torchrun: on this machine, or with --nodes on several, started on each of them with
# MASTER_ADDR naming the first.
takes="--np --nodes --gpus"
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

meeting=(--standalone)
if ((${nodes:-1} > 1)); then
    [[ -n $gpus ]] || refuse "--nodes needs --gpus, the processes on each."
    [[ -n ${MASTER_ADDR:-} ]] ||
        refuse "on several machines, set MASTER_ADDR to the first one's name, and give this command on each."
    meeting=(--nnodes "$nodes" --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29500}")
fi
count_processes
torchrun=$(program torchrun)
start "$torchrun" "it comes with torch: 'make setup'" \
    env "$threads" "$torchrun" "${meeting[@]}" --nproc-per-node "${gpus:-$processes}" \
    ${logs:+--log-dir "$logs" --tee 3} "${run[@]}"
