#!/usr/bin/env bash
# Start a job on this machine: over Horovod if it is installed, else under torchrun.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch local "$@"
