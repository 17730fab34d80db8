#!/usr/bin/env bash
# Start a job on this machine, and restart each process that dies.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch singly "$@"
