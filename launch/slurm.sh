#!/usr/bin/env bash
# Submit a Slurm job.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch slurm "$@"
