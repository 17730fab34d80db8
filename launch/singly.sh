#!/usr/bin/env bash
# Start a job on this machine, and restart each process that dies.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch singly "$@"
