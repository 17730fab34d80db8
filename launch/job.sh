# shellcheck shell=bash disable=SC2034  # what is set here is used by the scripts that source this
# Sourced by the launch scripts, which are all called alike:
#     X.sh RECIPE [key=value …] [options] [--print]
# The script says in `takes` which options it has. This reads them into variables of their names and
# `run`, what each process runs; `start` then starts the job, or with --print only shows how.
set -euo pipefail
takes=${takes:-}
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

np='' nodes='' gpus='' cpus='' hosts='' time='' container='' kind='' image='' claim='' name=''

describe() {
    case $1 in
        --np) echo "N|processes; by default one per GPU of this machine, or 2 without GPUs" ;;
        --nodes) echo "N|machines" ;;
        --gpus) echo "N|GPUs, and with them processes, on each machine" ;;
        --cpus) echo "N|cores per process, on machines shared with other jobs; else they are the job's alone" ;;
        --hosts) echo "HOST:N,…|machines, and how many processes each has; process 0 is on the first" ;;
        --time) echo "TIME|limit, such as 8:00:00" ;;
        --container) echo "IMAGE|to run in, with Slurm's pyxis" ;;
        --kind) echo "mpijob|pytorchjob|which of Kubeflow's jobs" ;;
        --image) echo "IMAGE|which has lsgd installed" ;;
        --claim) echo "NAME|the PersistentVolumeClaim with the data and the runs, mounted at /lsgd" ;;
        --name) echo "NAME|of the job; by default the recipe's" ;;
        --print) echo "|show what would be started or submitted, and do nothing" ;;
    esac
}

# "--np N" of "--np".
written() {
    local described value
    described=$(describe "$1")
    value=${described%|*}
    echo "$1${value:+ $value}"
}

usage="${0##*/} RECIPE [key=value …]"
for option in $takes --print; do usage+=" [$(written "$option")]"; done

refuse() {
    echo "${0##*/}: $*" >&2
    exit 2
}

recipe=
run_dir=
prints=no
words=()
while (($#)); do
    case $1 in
        --print) prints=yes ;;
        -h | --help)
            echo "usage: $usage"
            for option in $takes --print; do
                described=$(describe "$option")
                printf '  %-24s %s\n' "$(written "$option")" "${described##*|}"
            done
            exit 0
            ;;
        -*)
            option=${1%%=*}
            [[ " $takes " == *" $option "* ]] || refuse "option $option is not known; write $usage."
            if [[ $1 == *=* ]]; then
                value=${1#*=}
            elif (($# > 1)); then
                value=$2
                shift
            else
                refuse "$option has no value; write $usage."
            fi
            case $option in
                --np | --nodes | --gpus | --cpus)
                    [[ $value =~ ^[1-9][0-9]*$ ]] ||
                        refuse "$option is $value, but must be a number, 1 or more."
                    ;;
                --hosts)
                    [[ $value =~ ^[^:,]+:[1-9][0-9]*(,[^:,]+:[1-9][0-9]*)*$ ]] ||
                        refuse "--hosts is $value, but must be like host1:8,host2:8."
                    ;;
            esac
            [[ -n $value ]] || refuse "$option has no value; write $usage."
            printf -v "${option#--}" %s "$value"
            ;;
        *=* | ~*)
            words+=("$1")
            if [[ $1 == run_dir=* ]]; then run_dir=${1#*=}; fi
            ;;
        *)
            [[ -z $recipe ]] || refuse "$1 is a second recipe after $recipe; write $usage."
            recipe=$1
            ;;
    esac
    shift
done
[[ -n $recipe ]] || refuse "which recipe? Write $usage."
if [[ -n $np && -n $gpus ]]; then
    refuse "--np counts all processes and --gpus those of a machine; write one of them."
fi

# In an image, the Python is the image's own.
python=${PYTHON:-}
if [[ -n $image || -n $container ]]; then python=python3; fi
if [[ -z $python && -x $launch/../.venv/bin/python ]]; then
    python=$(cd "$launch/.." && pwd)/.venv/bin/python
fi
python=${python:-python3}

run=(-m lsgd.train "+recipe=$recipe" ${words[@]+"${words[@]}"})

needs_python() {
    command -v "$python" >/dev/null || refuse "there is no Python at $python; run 'make setup', or set PYTHON."
}

# Sets `processes`, and `threads` such that those of a machine share its cores; each would otherwise
# start as many threads as there are cores.
count_processes() {
    needs_python
    local here each cores
    if [[ -n $gpus ]]; then
        processes=$((${nodes:-1} * gpus))
    elif [[ -n $np ]]; then
        processes=$np
    elif [[ -n $hosts ]]; then
        processes=0
        for each in ${hosts//,/ }; do processes=$((processes + ${each##*:})); done
    else
        processes=$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)' 2>/dev/null || echo 2)
    fi
    here=${gpus:-$processes}
    if [[ -n $hosts ]]; then
        here=${hosts%%,*}
        here=${here##*:}
    fi
    cores=$(getconf _NPROCESSORS_ONLN)
    threads=OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > here ? cores / here : 1))}
}

# Where the output of each process is kept: a new folder for every start, and none where the run
# names its folder itself.
logs=
if [[ -n $run_dir ]]; then
    started=1
    while [[ -e $run_dir/logs/start$started ]]; do started=$((started + 1)); done
    logs=$run_dir/logs/start$started
fi

# A program that is installed beside the Python, whether or not that folder is in PATH.
program() {
    local path
    path=$(dirname "$(command -v "$python")")/$1
    if [[ -x $path ]]; then echo "$path"; else echo "$1"; fi
}

# A mistake in the recipe ends here, in a sentence; launchers bury it under tracebacks of their own
# and lose the exit code.
check_recipe() {
    needs_python
    "$python" - "$1" "${run[@]:2}" <<'PY' || exit
import sys

try:
    from lsgd import config
    from lsgd.errors import Refused
    from lsgd.recipe.checks import check_world_size
except ImportError as error:
    sys.exit(f"lsgd: {sys.executable} cannot import lsgd ({error}); run 'make setup', or set PYTHON")
try:
    check_world_size(config.load_recipe(sys.argv[2:]), int(sys.argv[1]))
except Refused as error:
    print(f"lsgd: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
PY
}

# start PROGRAM HOW_TO_GET_IT COMMAND …
start() {
    local needed=$1 remedy=$2
    shift 2
    if [[ $prints == yes ]]; then
        local line
        line=$(printf ' %q' "$@")
        echo "${line# }"
        exit 0
    fi
    command -v "$needed" >/dev/null || refuse "$needed is not installed; $remedy."
    check_recipe "$processes"
    exec "$@"
}

# submit PROGRAM HOW_TO_GET_IT TEXT COMMAND …: hand the text to the command.
submit() {
    local needed=$1 remedy=$2 text=$3
    shift 3
    if [[ $prints == yes ]]; then
        echo "$text"
        exit 0
    fi
    command -v "$needed" >/dev/null || refuse "$needed is not installed; $remedy."
    # An image may have what this machine lacks.
    if [[ -z $image && -z $container ]]; then check_recipe "$processes"; fi
    if [[ -n ${log_folder:-} ]]; then mkdir -p "$log_folder"; fi
    "$@" <<<"$text"
}
