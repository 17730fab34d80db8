#!/usr/bin/env bash
# One job under horovodrun, on this machine or on --hosts, which it reaches over ssh.
takes="--np --hosts"
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

count_processes
# Horovod 0.28.1 cannot name the files of a single process; what that prints is seen anyway.
if ((processes == 1)); then logs=; fi
horovodrun=$(program horovodrun)
# --gloo: without it horovodrun hands over to mpirun where it can, and mpirun.sh is for that.
start "$horovodrun" "setup/horovod.sh builds it" \
    env "$threads" "$horovodrun" --gloo -np "$processes" ${hosts:+-H "$hosts"} \
    ${logs:+--output-filename "$logs"} "$python" "${run[@]}"
