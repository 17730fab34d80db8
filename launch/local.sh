#!/usr/bin/env bash
# One job on this machine, over Horovod if it is there.
arguments=("$@")
takes="--np"
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

count_processes
without_horovod=$(
    "$python" - 2>/dev/null <<'PY' || echo "Horovod is not installed; setup/horovod.sh builds it"
import horovod.torch as hvd
import torch

if torch.cuda.is_available() and not hvd.nccl_built():
    print("Horovod is built without NCCL, so not for these GPUs")
PY
)
if [[ -z $without_horovod ]]; then
    launcher=horovodrun
    echo "local.sh: $processes processes under horovodrun" >&2
else
    launcher=torchrun
    echo "local.sh: $processes processes under torchrun ($without_horovod)" >&2
fi
PYTHON=$python exec bash "$launch/$launcher.sh" "${arguments[@]}" --np "$processes"
