#!/usr/bin/env bash
# One job on this machine: over Horovod if installed, else under torchrun.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch local "$@"
