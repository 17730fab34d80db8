#!/usr/bin/env bash
# One job under mpirun, on the hosts it knows of: launch/mpirun.sh RECIPE [key=value …] [--np N] [--print]
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

if ((EUID == 0)) && [[ -z ${OMPI_ALLOW_RUN_AS_ROOT:-} ]]; then
    echo "mpirun.sh: you are root, which Open MPI refuses; where that is meant, as in a container," \
        "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1." >&2
fi
# Open MPI binds each of two processes to one core, and all its threads with it: --bind-to none.
# `env` stands inside, since mpirun does not carry the environment to other hosts.
start mpirun "Debian has it: 'sudo apt install openmpi-bin libopenmpi-dev', then setup/horovod.sh" \
    mpirun --bind-to none -np "$processes" env "$threads" "$python" "${run[@]}"
