# shellcheck shell=bash disable=SC2034  # what is set here is used by the scripts that source this
# Sourced by the launch scripts: what they have in common. It reads
#     RECIPE [key=value …] [--np N] [--print]
# into `processes` and `run`, what each process runs; `start` then starts the job, or
# with --print only shows how.
set -euo pipefail
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
usage="${0##*/} RECIPE [key=value …] [--np N] [--print]"

refuse() {
    echo "${0##*/}: $*" >&2
    exit 2
}

recipe=
processes=
prints=no
overrides=()
while (($#)); do
    case $1 in
        --np)
            processes=${2:-nothing}
            shift
            ;;
        --np=*) processes=${1#*=} ;;
        --print) prints=yes ;;
        -h | --help)
            echo "usage: $usage"
            echo "N processes, by default one per GPU, or 2 without GPUs; --print shows the command and starts nothing."
            exit 0
            ;;
        -*) refuse "option $1 is not known; write $usage." ;;
        *=* | ~*) overrides+=("$1") ;;
        *)
            [[ -z $recipe ]] || refuse "$1 is a second recipe after $recipe; write $usage."
            recipe=$1
            ;;
    esac
    if (($#)); then shift; fi
done
[[ -n $recipe ]] || refuse "which recipe? Write $usage."

python=${PYTHON:-}
if [[ -z $python && -x $launch/../.venv/bin/python ]]; then
    python=$(cd "$launch/.." && pwd)/.venv/bin/python
fi
python=${python:-python3}
command -v "$python" >/dev/null || refuse "there is no Python at $python; run 'make setup', or set PYTHON."

if [[ -z $processes ]]; then
    processes=$("$python" -c 'import torch; print(torch.cuda.device_count() or 2)' 2>/dev/null || echo 2)
fi
[[ $processes =~ ^[1-9][0-9]*$ ]] || refuse "--np is $processes, but must be a number of processes, 1 or more."

# Each process would otherwise start as many threads as there are cores.
if [[ -z ${OMP_NUM_THREADS:-} ]]; then
    OMP_NUM_THREADS=$(($(getconf _NPROCESSORS_ONLN) / processes))
    OMP_NUM_THREADS=$((OMP_NUM_THREADS > 0 ? OMP_NUM_THREADS : 1))
fi
threads=OMP_NUM_THREADS=$OMP_NUM_THREADS

run=(-m lsgd.train "+recipe=$recipe" ${overrides[@]+"${overrides[@]}"})

# A program that is installed beside the Python, whether or not that folder is in PATH.
program() {
    local path
    path=$(dirname "$(command -v "$python")")/$1
    if [[ -x $path ]]; then echo "$path"; else echo "$1"; fi
}

# start PROGRAM HOW_TO_GET_IT COMMAND …
start() {
    local needed=$1 remedy=$2
    shift 2
    if [[ $prints == yes ]]; then
        local words
        words=$(printf ' %q' "$@")
        echo "${words# }"
        exit 0
    fi
    command -v "$needed" >/dev/null || refuse "$needed is not installed; $remedy."
    # A mistake in the recipe ends here, in a sentence; launchers bury it under tracebacks of their
    # own and lose the exit code.
    "$python" - "$processes" "${run[@]:2}" <<'PY' || exit
import sys

try:
    from lsgd import config, recipe
    from lsgd.errors import Refused
except ImportError as error:
    sys.exit(f"lsgd: {sys.executable} cannot import lsgd ({error}); run 'make setup', or set PYTHON")
try:
    recipe.check_world_size(config.load_recipe(sys.argv[2:]), int(sys.argv[1]))
except Refused as error:
    print(f"lsgd: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
PY
    exec "$@"
}
