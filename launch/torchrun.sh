#!/usr/bin/env bash
# Start a job under torchrun, on this machine or on several.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch torchrun "$@"
