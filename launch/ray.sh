#!/usr/bin/env bash
# One job over Ray: that of RAY_ADDRESS, or one of its own on this machine.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch ray "$@"
