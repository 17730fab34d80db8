#!/usr/bin/env bash
# Start a job under Open MPI's mpirun, on --hosts or on the hosts of its allocation.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch mpirun "$@"
