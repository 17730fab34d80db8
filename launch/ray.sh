#!/usr/bin/env bash
# One job over Ray: the cluster at RAY_ADDRESS, or a new one on this machine.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch ray "$@"
