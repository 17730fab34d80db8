# shellcheck shell=bash disable=SC2154
# Sourced by the build scripts: properties of torch, the build itself, and error handling.
# The script sets `package`, `here` and `key`, and defines `give_up SENTENCE` for errors of a build.
# Any other failure, including a tool that is missing or killed, also ends with an error message.
set -E

made=     # folder of the wheel, removed at the end
work=     # folder of the build: the same folder if its path has no blank
building= # process group of the compilers
progress= # process group of the progress messages

say() { echo "$package: $*"; }

refuse() {
    say "$*." >&2
    exit 1
}

# --- Exit and error handling -----------------------------------------------------------------

unforeseen() {
    local status=$1 place=$2 command=${3%%$'\n'*} how
    trap - ERR
    # A subshell returns its status: then the command around it fails, and is reported once.
    if ((BASH_SUBSHELL)); then exit "$status"; fi
    how="failed with exit status $status"
    if ((status == 127)); then how="needs a program that is not here"; fi
    if ((status > 128)); then how="was ended by signal $((status - 128))"; fi
    give_up "$place, '$command', $how"
}

interrupted() {
    trap '' HUP INT TERM
    trap - ERR
    say "interrupted; the same command begins again." >&2
    exit "$1"
}

clean() {
    if [[ -n $progress ]]; then kill -- "-$progress" 2>/dev/null || true; fi
    if [[ -n $building ]] && kill -- "-$building" 2>/dev/null; then
        # A process that still writes into a folder would keep it from being removed.
        for _ in {1..20}; do
            if ! kill -0 -- "-$building" 2>/dev/null; then break; fi
            sleep 0.1
        done
        kill -KILL -- "-$building" 2>/dev/null || true
    fi
    { [[ -z $made ]] || rm -rf "$made" "$work"; } 2>/dev/null || true
}

trap 'unforeseen $? "line $LINENO of setup/${BASH_SOURCE[0]##*/}" "$BASH_COMMAND"' ERR
trap 'interrupted 129' HUP
trap 'interrupted 130' INT
trap 'interrupted 143' TERM
trap clean EXIT

# --- The target of the build -----------------------------------------------------------------

# Set python, torch, cuda, standard, tag, devices, beside, python_header, compilers and installed for the
# Python $1; $2 is a module that exists only in a compiled package.
learn() {
    local asked facts status=0
    asked=$(command -v "$1") ||
        refuse "there is no Python at $1; name the one that has torch: setup/$package.sh PYTHON"
    facts=$("$asked" "$here/facts.py" "$package" "$2") || status=$?
    if ((status == 3)); then exit 1; fi
    ((status == 0)) || refuse "$asked could not tell about its torch (exit status $status)"
    # shellcheck disable=SC2034  # read by the scripts
    {
        read -r python
        read -r torch
        read -r cuda
        read -r standard
        read -r tag
        read -r devices
        read -r beside
        read -r python_header
        read -r compilers
        read -r installed
    } <<<"$facts"
}

# --- The wheel -------------------------------------------------------------------------------

pip() { PIP_USER=0 "$python" -m pip --disable-pip-version-check "$@"; }

# Set cache, and wheel to the wheel of $key in it, or to nothing. Without a HOME, ~ is the home in the
# system's list of users.
find_wheel() {
    local each
    cache=${XDG_CACHE_HOME:-~/.cache}/lsgd/wheels
    wheel=
    for each in "$cache/$key"/*.whl; do
        if [[ -f $each ]]; then wheel=$each; fi
    done
}

# Make the folders, and set log. The wheel's folder is on the same file system as its destination, so that
# it is moved atomically and a concurrent or interrupted build cannot leave half a wheel.
begin_build() {
    mkdir -p "$cache" 2>/dev/null || true
    [[ -d $cache && -w $cache ]] ||
        give_up "the wheel cache $cache cannot be written (set XDG_CACHE_HOME to a folder that can)"
    made=$(mktemp -d "$cache/.build.XXXXXX")
    work=$made
    if [[ $work == *[[:space:]]* ]]; then work=$(mktemp -d); fi # a path in Horovod's CMake files is bare
    mkdir "$work/tmp" "$made/wheel"
    log=$cache/$key.$$.log
    PATH=${python%/*}:$PATH # a CMake or ninja from PyPI is next to the interpreter
}

say_progress() {
    local begun=$SECONDS so_far
    while sleep 20 && kill -0 $$ 2>/dev/null; do
        so_far=$(grep -oE '\[ *[0-9]+(%|/[0-9]+)\]' "$log" | tail -n 1) || true
        say "building: ${so_far:-getting ready} after $(elapsed "$begun")"
    done
}

elapsed() { echo "$(((SECONDS - $1) / 60)) min $(((SECONDS - $1) % 60)) s"; }

# Run the command that leaves a wheel in $made/wheel, and move that to the cache.
build_wheel() {
    local begun=$SECONDS status=0
    set -m # process groups of their own, so that Ctrl-C can end the compilers too
    "$@" >"$log" 2>&1 &
    building=$!
    say_progress &
    progress=$!
    set +m
    wait "$building" || status=$?
    building=
    kill -- "-$progress" 2>/dev/null || true
    progress=
    if ((status)); then
        # The last lines are those of pip and Python; the error itself is further up, if there is a message.
        { grep -E -B 2 -A 3 'CMake Error|[Ee]rror:' "$log" || tail -n 20 "$log"; } 2>/dev/null |
            head -n 20 >&2 || true
        give_up "it did not build for torch $torch; the lines above are from its log, $log"
    fi
    # Fails if another build was first; its wheel is equivalent.
    "$python" -c 'import os, sys; os.rename(*sys.argv[1:])' "$made/wheel" "$cache/$key" 2>/dev/null || true
    say "built in $(elapsed "$begun")"
}

# Install the wheel, and test with the Python program $1 whether it loads.
install_wheel() {
    local problem
    find_wheel
    [[ -n $wheel ]] || give_up "the build has left no wheel in $cache/$key; its log is $log"
    pip install --quiet --no-deps --no-index --force-reinstall "$wheel" ||
        give_up "$wheel could not be installed (see pip's message above)"
    if ! problem=$("$python" -c "$1" 2>&1); then
        pip uninstall --quiet --yes "$package" || true
        give_up "$wheel does not load (${problem##*$'\n'}); delete its folder and run setup/$package.sh again"
    fi
}
