#!/usr/bin/env bash
# One Slurm job.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch slurm "$@"
