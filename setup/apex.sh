#!/usr/bin/env bash
# Install NVIDIA's apex for the torch of one Python, as optim.fused=apex needs it:
# setup/apex.sh [PYTHON]
#
# NVIDIA publishes no package of it: PyPI's apex is another project, and only NGC's PyTorch containers
# include it.
# This script compiles one commit of its repository, by nvcc of the CUDA version of torch; the wheel is
# cached in ${XDG_CACHE_HOME:-~/.cache}/lsgd/wheels/<what it was built for>/ and installed
# from there next time. TORCH_CUDA_ARCH_LIST=9.0 compiles only for an H100 or H200.
set -euo pipefail

package=apex
commit=6424da3b4faa6c8f062da4a48c424fff3f02d42d # 2026-07-08
source=https://github.com/NVIDIA/apex
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/build.sh"
source "$here/cuda.sh"

give_up() { refuse "$@"; }

# --- The target of the build -----------------------------------------------------------------

learn "${1:-${PYTHON:-$here/../.venv/bin/python}}" amp_C

[[ $cuda != none ]] ||
    refuse "torch $torch of $python is a CPU build, and apex has updates for GPUs alone;" \
        "install a CUDA build of torch first, or leave optim.fused=torch"

if [[ $devices == none ]]; then devices=all; fi
architectures=${TORCH_CUDA_ARCH_LIST:-$devices}
key=apex-${commit:0:12}-torch-$torch-$tag-cc-${architectures//[; ]/,}
case $installed in
    "$key")
        say "${commit:0:12} for torch $torch is in place."
        exit 0
        ;;
    other)
        say "an apex of NVIDIA's that lsgd did not build is installed in $python and is left as it is;" \
            "'$python -m pip uninstall apex' first to have it replaced."
        exit 0
        ;;
    stranger)
        refuse "the apex installed in $python has no CUDA kernels, as PyPI's, another package of that" \
            "name; '$python -m pip uninstall apex' first, then setup/apex.sh again"
        ;;
esac

# --- Build it, unless it is cached -----------------------------------------------------------

build() {
    local missing=''
    find_cuda "$beside" "$cuda" "$cuda" # apex refuses an nvcc of any other release
    [[ -n $cuda_home ]] ||
        refuse "torch $torch is built for CUDA $cuda, and no whole toolkit of it is" \
            "here${cuda_lacks:+ ($cuda_lacks)}; $cuda_remedy, then run setup/apex.sh again"
    command -v git >/dev/null || missing="$missing git"
    command -v "${CXX:-c++}" >/dev/null || missing="$missing g++"
    [[ -f $python_header ]] || missing="$missing python3-dev"
    [[ -z $missing ]] ||
        refuse "building it needs$missing, not found here (Debian: 'sudo apt install$missing')"
    # The imports of its setup.py.
    pip install --quiet 'setuptools>=70.1' wheel packaging ninja ||
        refuse "the packages that the build imports could not be installed (see pip's message above)"

    begin_build
    complete_cuda "$work/cuda"
    git init --quiet "$work/apex"
    git -C "$work/apex" fetch --quiet --depth 1 "$source" "$commit" ||
        refuse "$source at ${commit:0:12} could not be fetched (see git's message above)"
    git -C "$work/apex" -c advice.detachedHead=false checkout --quiet FETCH_HEAD
    mv "$work/apex/setup.py" "$work/apex/setup_of_apex.py"
    cp "$here/amp_c.py" "$work/apex/setup.py"

    say "compiling ${commit:0:12} for torch $torch with nvcc of CUDA $cuda, for ${architectures}, once; log: $log"
    if [[ $architectures == all ]]; then
        say "no GPU is in sight, so it is for every architecture that apex knows; TORCH_CUDA_ARCH_LIST=9.0" \
            "compiles for an H100 or H200 alone."
    fi
    # The build uses torch and setuptools of $python; ninja, if installed, starts MAX_JOBS compilers.
    build_wheel env CUDA_HOME="$cuda_home" APEX_CUDA_EXT=1 NVCC_APPEND_FLAGS="--threads 4" \
        MAX_JOBS="${MAX_JOBS:-$compilers}" \
        TMPDIR="$work/tmp" \
        "$python" -m pip wheel -v --disable-pip-version-check --no-cache-dir --no-build-isolation \
        --no-deps --wheel-dir "$made/wheel" "$work/apex"
}

find_wheel
if [[ -z $wheel ]]; then build; fi
install_wheel 'import torch, amp_C; from apex.optimizers import FusedSGD'
say "${commit:0:12} installed from $wheel"
