#!/usr/bin/env bash
# One job under Open MPI's mpirun, on --hosts or on the machines that it is configured for.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch mpirun "$@"
