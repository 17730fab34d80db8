#!/usr/bin/env bash
# Start a job on this machine: over Horovod if it is installed, else under torchrun.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch local "$@"
