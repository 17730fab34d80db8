#!/usr/bin/env bash
# Start a job over Ray: on the cluster of RAY_ADDRESS, or on a new local one.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch ray "$@"
