#!/usr/bin/env bash
# Install Horovod for the torch of one Python: setup/horovod.sh [PYTHON]
#
# PyPI has Horovod as source only, so it is compiled here, once: the wheel is kept in
# ${XDG_CACHE_HOME:-~/.cache}/lsgd/wheels/<what it was built for>/ and installed from there next time.
# Gloo is always in it; MPI and NCCL are when this machine can compile against them.
# lsgd also runs without Horovod, so a machine that cannot build it is no error here, unless
# LSGD_REQUIRE names horovod.
set -euo pipefail

version=0.28.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/cuda.sh"

say() { echo "horovod: $*"; }

go_on_without() {
    say "$1; lsgd goes on with torch.distributed." >&2
    case ,${LSGD_REQUIRE:-}, in
        *,horovod,*)
            say "LSGD_REQUIRE names horovod, so this is an error." >&2
            exit 1
            ;;
    esac
    exit 0
}

# --- What is there to build for --------------------------------------------------------------

asked=${1:-${PYTHON:-$here/../.venv/bin/python}}
python=$(command -v "$asked") || {
    say "there is no Python at $asked; name the one that has torch: setup/horovod.sh PYTHON." >&2
    exit 1
}

{
    read -r torch
    read -r cuda
    read -r standard
    read -r tag
    read -r devices
    read -r beside
    read -r python_header
    read -r installed
} < <("$python" - "$version" <<'PY'
import json
import platform
import re
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote

try:
    import torch
except ImportError as error:
    sys.exit(
        f"horovod: {sys.executable} has no torch to build Horovod for ({error}); "
        "run 'make setup', or install torch there first."
    )

root = Path(torch.__path__[0])
wanted = re.search(r"C\+\+(\d\d) or later", (root / "include/ATen/ATen.h").read_text())
devices = {"%d%d" % torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
try:  # pip notes which file a package came from; ours lies in a folder named by its key
    origin = metadata.distribution("horovod").read_text("direct_url.json") or "{}"
    folder = Path(unquote(json.loads(origin).get("url", ""))).parent
    installed = folder.name if folder.parent.match("lsgd/wheels") else "other"
except metadata.PackageNotFoundError:
    installed = "none"

print(torch.__version__)
print(torch.version.cuda or "none")
print(wanted[1] if wanted else 17)
print(f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}")
print(",".join(sorted(devices)) or "all")
print(root.parent)
print(Path(sysconfig.get_path("include")) / "Python.h")
print(installed)
PY
) || exit 1

mpi=none
mpi_hint=
if command -v mpirun >/dev/null && command -v mpicxx >/dev/null &&
    echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1; then
    banner=$(mpirun --version 2>/dev/null)
    case $banner in *"Open MPI"*) mpi=openmpi ;; *) mpi=mpich ;; esac
    mpi=$mpi-$(grep -oE '[0-9]+(\.[0-9]+)+' <<<"$banner" | head -n 1)
else
    mpi_hint="; for MPI: 'sudo apt install openmpi-bin libopenmpi-dev', then once more"
fi

nccl=none
nccl_home=
cuda_home=
if [[ $cuda != none ]]; then
    find_cuda "$beside" "$cuda"
    # torch's own NCCL first: it is the one in the process at run time.
    for nccl_home in "${HOROVOD_NCCL_HOME:-}" "$beside/nvidia/nccl" /usr/local /usr ''; do
        if [[ -n $nccl_home && -f $nccl_home/include/nccl.h ]]; then break; fi
    done
    if [[ -n $cuda_home && -n $nccl_home ]]; then
        nccl=$(sed -nE 's/^#define NCCL_(MAJOR|MINOR|PATCH) +([0-9]+).*/\2/p' "$nccl_home/include/nccl.h" |
            head -n 3 | paste -s -d . -)-cc-${HOROVOD_BUILD_CUDA_CC_LIST:-$devices}
    else
        say "torch $torch is a CUDA build, but the CUDA toolkit (nvcc) or NCCL (nccl.h) is missing," \
            "so Horovod is built for CPU tensors; for GPUs install CUDA toolkit $cuda, or set CUDA_HOME" \
            "and HOROVOD_NCCL_HOME to where they are, then run setup/horovod.sh again."
    fi
fi

key=horovod-$version-torch-$torch-$tag-mpi-$mpi-nccl-$nccl
contents="Gloo, MPI: $mpi, NCCL: $nccl"
if [[ $installed == "$key" ]]; then
    say "$version ($contents) is in place$mpi_hint."
    exit 0
fi
if [[ $installed == other ]]; then
    say "a Horovod that lsgd did not build is installed in $python and is left as it is;" \
        "'$python -m pip uninstall horovod' first to have it replaced."
    exit 0
fi

# --- Build it, unless the cache has it -------------------------------------------------------

cache=${XDG_CACHE_HOME:-$HOME/.cache}/lsgd/wheels
mkdir -p "$cache" 2>/dev/null ||
    go_on_without "the wheel cache $cache cannot be written (set XDG_CACHE_HOME to a folder that can)"
PATH=$(dirname "$python"):$PATH # a CMake from PyPI lies beside the interpreter

wheel_in_cache() { find "$cache/$key" -name 'horovod-*.whl' 2>/dev/null | head -n 1; }

pip() { "$python" -m pip --disable-pip-version-check "$@"; }

build() {
    local missing='' cxx log work library pid begun spent next percent
    cxx=$(command -v "${CXX:-c++}" || command -v g++) || missing="$missing g++"
    command -v make >/dev/null || missing="$missing make"
    command -v cmake >/dev/null || missing="$missing cmake"
    [[ -f $python_header ]] || missing="$missing python3-dev"
    if [[ -n $missing ]]; then
        go_on_without "building it needs$missing, not found here (Debian: 'sudo apt install$missing')"
    fi

    # Beside its destination, so that the finished folder moves there in one step and a build
    # running at the same time, or an interrupted one, cannot leave half a wheel behind.
    work=$(mktemp -d "$cache/.build.XXXXXX")
    # shellcheck disable=SC2064  # expanded now on purpose: `work` is local
    trap "rm -rf '$work'" EXIT
    log=$cache/$key.$$.log
    mkdir "$work/tmp" "$work/wheel"

    local options=(HOROVOD_WITHOUT_MPI=1)
    [[ $mpi == none ]] || options=(HOROVOD_WITH_MPI=1)
    if [[ $nccl != none ]]; then
        # NCCL's own wheel has libnccl.so.2 only, the linker looks for libnccl.so.
        mkdir -p "$work/nccl/lib"
        ln -s "$nccl_home/include" "$work/nccl/include"
        library=$(find "$nccl_home"/lib* -name 'libnccl.so*' 2>/dev/null | sort | head -n 1 || true)
        [[ -n $library ]] || go_on_without "$nccl_home has nccl.h, but no libnccl.so in its lib folder"
        ln -s "$library" "$work/nccl/lib/libnccl.so"
        complete_cuda "$work/cuda"
        options+=(HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED "HOROVOD_NCCL_HOME=$work/nccl"
            "CUDA_HOME=$cuda_home" "HOROVOD_CUDA_HOME=$cuda_home")
        if [[ -n ${HOROVOD_BUILD_CUDA_CC_LIST:-} || $devices != all ]]; then
            options+=("HOROVOD_BUILD_CUDA_CC_LIST=${HOROVOD_BUILD_CUDA_CC_LIST:-$devices}")
        else
            say "no GPU is in sight, so it is for every architecture that nvcc knows;" \
                "HOROVOD_BUILD_CUDA_CC_LIST=90 compiles for an H100 or H200 alone, which such a node" \
                "then takes from the cache."
        fi
    fi

    say "building $version for torch $torch with C++$standard ($contents), once, 2 to 11 minutes$mpi_hint; log: $log"
    # --no-cache-dir: pip's own cache knows a wheel by its source, not by the torch it was built for.
    # MAKEFLAGS also keeps the job server of a calling make out.
    set -m # a process group of its own, so that Ctrl-C can end the compilers too
    env -u CMAKE_GENERATOR -u CXXFLAGS "${options[@]}" TMPDIR="$work/tmp" \
        CXX="$here/cxx" LSGD_CXX="$cxx" LSGD_CXX_STD="$standard" \
        MAKEFLAGS="-j$(getconf _NPROCESSORS_ONLN)" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 \
        "$python" -m pip wheel -v --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps \
        --no-binary horovod --wheel-dir "$work/wheel" "horovod==$version" >"$log" 2>&1 &
    pid=$!
    set +m
    # shellcheck disable=SC2064
    trap "kill -- -$pid; exit 130" INT TERM
    begun=$SECONDS spent=0 next=20
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        spent=$((SECONDS - begun))
        if ((spent >= next)); then
            percent=$(grep -oE '\[ *[0-9]+%\]' "$log" | tail -n 1 | tr -d '[] ' || true)
            say "building: ${percent:-getting ready} after $((spent / 60)) min $((spent % 60)) s"
            next=$((spent + 20))
        fi
    done
    if ! wait "$pid"; then
        # The last lines are pip's and Python's; what failed stands further up, if it says so.
        { grep -E -A 3 'CMake Error|error:' "$log" || tail -n 20 "$log"; } | head -n 20 >&2 || true
        go_on_without "$version did not build for torch $torch; the lines above are from its log, $log"
    fi
    # Fails where another build was first; its wheel is as good.
    "$python" -c 'import os, sys; os.rename(*sys.argv[1:])' "$work/wheel" "$cache/$key" 2>/dev/null || true
    say "built in $((spent / 60)) min $((spent % 60)) s"
}

# What Horovod imports; setuptools because Python 3.12 has no distutils, which horovodrun and the
# build use, and at 70.1 because it then makes wheels by itself.
constraints=()
if [[ -f $here/../constraints.txt ]]; then constraints=(-c "$here/../constraints.txt"); fi
pip install --quiet ${constraints[@]+"${constraints[@]}"} \
    cffi cloudpickle packaging psutil pyyaml 'setuptools>=70.1' ||
    go_on_without "the packages that Horovod imports could not be installed (see pip's message above)"

if [[ -z $(wheel_in_cache) ]]; then build; fi
wheel=$(wheel_in_cache)
pip install --quiet --no-deps --no-index --force-reinstall "$wheel" ||
    go_on_without "$wheel could not be installed (see pip's message above)"
if ! problem=$("$python" -c 'import horovod.torch' 2>&1); then
    pip uninstall --quiet --yes horovod
    go_on_without "$wheel does not load (${problem##*$'\n'}); delete its folder and run setup/horovod.sh again"
fi
say "$version ($contents) installed from $wheel"
