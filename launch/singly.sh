#!/usr/bin/env bash
# One job on this machine whose processes are started one by one, and again if they die.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch singly "$@"
