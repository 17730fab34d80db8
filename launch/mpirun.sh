#!/usr/bin/env bash
# One job under Open MPI's mpirun, on --hosts or on the machines that it knows of: those of its
# hostfile or of the Slurm job it runs in, else this one.
takes="--np --nodes --gpus --hosts"
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

if [[ -n $nodes && -z $gpus ]]; then refuse "--nodes needs --gpus, the processes on each."; fi
count_processes
if ((EUID == 0)) && [[ -z ${OMPI_ALLOW_RUN_AS_ROOT:-} ]]; then
    echo "mpirun.sh: you are root, which Open MPI refuses; where that is meant, as in a container," \
        "set OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1." >&2
fi
# Open MPI binds each of two processes to one core, and all its threads with it: --bind-to none.
# `env` stands inside, since mpirun does not carry the environment to other hosts.
start mpirun "Debian has it: 'sudo apt install openmpi-bin libopenmpi-dev', then setup/horovod.sh" \
    mpirun --bind-to none -np "$processes" ${gpus:+--map-by "ppr:$gpus:node"} \
    ${hosts:+-H "$hosts"} ${logs:+--output-filename "$logs"} \
    ${LSGD_SUPERVISED:+-x LSGD_SUPERVISED} env "$threads" "$python" "${run[@]}"
