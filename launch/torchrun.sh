#!/usr/bin/env bash
# Start a job under torchrun, on this machine or on several.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch torchrun "$@"
