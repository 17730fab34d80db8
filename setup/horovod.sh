#!/usr/bin/env bash
# Install Horovod for the torch of one Python: setup/horovod.sh [PYTHON]
#
# PyPI has Horovod only as source, so it is compiled here, once: the wheel is cached in
# ${XDG_CACHE_HOME:-~/.cache}/lsgd/wheels/<what it was built for>/ and installed from there next time.
# It always includes Gloo, MPI if this machine can compile against it, and NCCL if it also has a GPU.
# Without a GPU, as on a login node, HOROVOD=nccl builds for every GPU, and
# HOROVOD_BUILD_CUDA_CC_LIST=90 only for an H100 or H200.
# lsgd also runs without Horovod, so it is not an error if a machine cannot build it, unless
# LSGD_REQUIRE includes horovod.
set -euo pipefail

package=horovod
version=0.28.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/build.sh"
source "$here/cuda.sh"

give_up() {
    say "$*; lsgd goes on with torch.distributed." >&2
    case ,${LSGD_REQUIRE:-}, in
        *,horovod,*) refuse "LSGD_REQUIRE names horovod, so this is an error" ;;
    esac
    exit 0
}

# --- The target of the build -----------------------------------------------------------------

learn "${1:-${PYTHON:-$here/../.venv/bin/python}}" horovod

mpi=none
mpi_hint=
if command -v mpirun >/dev/null && command -v mpicxx >/dev/null &&
    echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1 &&
    banner=$(mpirun --version 2>/dev/null); then
    case $banner in *"Open MPI"*) mpi=openmpi ;; *) mpi=mpich ;; esac
    if [[ $banner =~ [0-9]+(\.[0-9]+)+ ]]; then mpi=$mpi-${BASH_REMATCH[0]}; fi
else
    mpi_hint="; for MPI: 'sudo apt install openmpi-bin libopenmpi-dev', then once more"
fi

for_gpus=no
architectures=all
nccl=none
nccl_home=
nccl_version=
cuda_home=
if [[ ${HOROVOD:-} == nccl && $cuda == none ]]; then
    refuse "HOROVOD=nccl needs a CUDA build of torch, and torch $torch of $python is a CPU build;" \
        "leave it out, or install a CUDA build of torch first"
fi
if [[ $cuda != none ]]; then
    if [[ $devices != none ]]; then
        architectures=${devices//./}
        architectures=${architectures//;/,}
    fi
    architectures=${HOROVOD_BUILD_CUDA_CC_LIST:-$architectures}
    if [[ $architectures != all || ${HOROVOD:-} == nccl ]]; then for_gpus=yes; fi
fi
if [[ $for_gpus == yes ]]; then
    find_cuda "$beside" "$cuda" "${cuda%%.*}.*" # releases of one CUDA are compatible
    # torch's own NCCL first: it is the one that is loaded at run time.
    for nccl_home in "${HOROVOD_NCCL_HOME:-}" "$beside/nvidia/nccl" /usr/local /usr ''; do
        if [[ -n $nccl_home && -f $nccl_home/include/nccl.h ]]; then break; fi
    done
    if [[ -n $cuda_home && -n $nccl_home ]]; then
        while read -r define macro value _; do
            case $define$macro in
                '#defineNCCL_MAJOR' | '#defineNCCL_MINOR' | '#defineNCCL_PATCH')
                    nccl_version=$nccl_version${nccl_version:+.}$value
                    ;;
            esac
        done <"$nccl_home/include/nccl.h"
        nccl=$nccl_version-cc-$architectures
    fi
fi

# Return whether the installed Horovod supports each GPU of this machine.
serves() {
    local each
    if [[ $for_gpus == no ]]; then return 0; fi
    [[ $1 == "$nccl_version"-cc-* ]] || return 1
    [[ $1 == *-cc-all ]] && return 0
    for each in ${architectures//,/ }; do
        [[ $each == all || ,${1#*-cc-}, == *,$each,* ]] || return 1
    done
}

built_for=horovod-$version-torch-$torch-$tag-mpi-$mpi-nccl-
key=$built_for$nccl
missing_cuda=
remedy=
if [[ $for_gpus == yes && $nccl == none ]]; then
    if [[ -z $cuda_home ]]; then
        missing_cuda="a whole CUDA toolkit${cuda_lacks:+ ($cuda_lacks)}"
        remedy=$cuda_remedy
    fi
    if [[ -z $nccl_home ]]; then
        missing_cuda="$missing_cuda${missing_cuda:+ and }NCCL (nccl.h)"
        remedy="${remedy:+$remedy; }set HOROVOD_NCCL_HOME to where NCCL is"
    fi
    remedy="for GPUs $remedy, then run setup/horovod.sh again"
    if [[ ${HOROVOD:-} == nccl ]]; then refuse "HOROVOD=nccl needs $missing_cuda, not found here; $remedy"; fi
fi
if [[ $installed == "$built_for"* ]] && { [[ -n $missing_cuda ]] || serves "${installed#"$built_for"}"; }; then
    contents="Gloo, MPI: $mpi, NCCL: ${installed#"$built_for"}"
    if [[ -n $missing_cuda && $installed == *-nccl-none ]]; then
        say "the Horovod in place is for CPU tensors, as $missing_cuda is missing; $remedy."
    else
        say "$version ($contents) is in place$mpi_hint."
    fi
    exit 0
fi
if [[ $installed == other || $installed == stranger ]]; then
    say "a Horovod that lsgd did not build is installed in $python and is left as it is;" \
        "'$python -m pip uninstall horovod' first to have it replaced."
    exit 0
fi
contents="Gloo, MPI: $mpi, NCCL: $nccl"

# --- Build it, unless it is cached -----------------------------------------------------------

build() {
    local missing='' cxx library each least most
    cxx=$(command -v "${CXX:-c++}" || command -v g++) || missing="$missing g++"
    command -v make >/dev/null || missing="$missing make"
    PATH=${python%/*}:$PATH command -v cmake >/dev/null || missing="$missing cmake"
    [[ -f $python_header ]] || missing="$missing python3-dev"
    [[ -z $missing ]] ||
        give_up "building it needs$missing, not found here (Debian: 'sudo apt install$missing', then setup/horovod.sh)"
    begin_build

    local options=(HOROVOD_WITHOUT_MPI=1)
    [[ $mpi == none ]] || options=(HOROVOD_WITH_MPI=1)
    if [[ $nccl != none ]]; then
        # NCCL's own wheel has libnccl.so.2 only, the linker looks for libnccl.so.
        mkdir -p "$work/nccl/lib"
        ln -s "$nccl_home/include" "$work/nccl/include"
        library=
        for each in "$nccl_home"/lib*/libnccl.so* "$nccl_home"/lib*/*/libnccl.so*; do
            if [[ -z $library && -e $each ]]; then library=$each; fi
        done
        [[ -n $library ]] || give_up "$nccl_home has nccl.h, but no libnccl.so in its lib folder"
        ln -s "$library" "$work/nccl/lib/libnccl.so"
        complete_cuda "$work/cuda"
        options+=(HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED "HOROVOD_NCCL_HOME=$work/nccl"
            "CUDA_HOME=$cuda_home" "HOROVOD_CUDA_HOME=$cuda_home")
        if [[ $architectures != all ]]; then
            options+=("HOROVOD_BUILD_CUDA_CC_LIST=$architectures")
        fi
    elif [[ -n $missing_cuda ]]; then
        say "torch $torch is a CUDA build, but $missing_cuda is missing, so Horovod is built for CPU" \
            "tensors; $remedy."
    elif [[ $cuda != none ]]; then
        say "torch $torch is a CUDA build and no GPU is in sight, so Horovod is built for CPU tensors;" \
            "for the GPUs of other nodes: HOROVOD_BUILD_CUDA_CC_LIST=90 (an H100 or H200 alone), or" \
            "HOROVOD=nccl (every GPU, 21 minutes on 2 cores)."
    fi

    # Measured on 2 cores: 2 to 9 minutes for CPU tensors, one of which uses a single core.
    least=$((1 + 2 / compilers)) most=$((1 + 16 / compilers))
    if [[ $nccl != none ]]; then least=$((1 + 4 / compilers)) most=$((1 + 24 / compilers)); fi
    if [[ $nccl == *-all ]]; then least=$((1 + 8 / compilers)) most=$((1 + 40 / compilers)); fi
    say "building $version for torch $torch with C++$standard ($contents), once, about $least to $most" \
        "minutes for $compilers compilers at once$mpi_hint; log: $log"
    # --no-cache-dir: pip's own cache identifies a wheel by its source, not by the torch version.
    # MAKEFLAGS also disables the job server of a calling make.
    build_wheel env -u CMAKE_GENERATOR -u CXXFLAGS "${options[@]}" TMPDIR="$work/tmp" \
        CXX="$here/cxx" LSGD_CXX="$cxx" LSGD_CXX_STD="$standard" \
        MAKEFLAGS="-j$compilers" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 \
        "$python" -m pip wheel -v --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps \
        --no-binary horovod --wheel-dir "$made/wheel" "horovod==$version"
}

# The imports of Horovod; setuptools because Python 3.12 has no distutils, which horovodrun and the
# build use, and from 70.1 on because it builds wheels without the package wheel. The pin of setuptools
# fits the pinned torch alone, and older ones need an older setuptools, so torch itself has its say.
constraints=()
if [[ -f $here/../constraints.txt ]]; then constraints=(-c "$here/../constraints.txt"); fi
setuptools=('setuptools>=70.1')
while read -r requirement; do setuptools+=("$requirement"); done < <("$python" -c '
from importlib.metadata import requires
for each in requires("torch") or []:
    if each.startswith("setuptools"):
        print(each)
' 2>/dev/null)
{ pip install --quiet ${constraints[@]+"${constraints[@]}"} cffi cloudpickle packaging psutil pyyaml &&
    pip install --quiet "${setuptools[@]}"; } ||
    give_up "the packages that Horovod imports could not be installed (see pip's message above)"

find_wheel
if [[ -z $wheel ]]; then build; fi
install_wheel 'import horovod.torch'
say "$version ($contents) installed from $wheel"
