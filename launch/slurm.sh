#!/usr/bin/env bash
# Submit a Slurm job.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch slurm "$@"
