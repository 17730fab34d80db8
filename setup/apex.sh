#!/usr/bin/env bash
# Install NVIDIA's apex for the torch of one Python, as optim.fused=apex needs it:
# setup/apex.sh [PYTHON]
#
# NVIDIA has no package of it: PyPI's apex is another one, and NGC's PyTorch containers have theirs.
# It is compiled here from its repository at one commit, by nvcc of the CUDA that torch is built for;
# the wheel is kept in ${XDG_CACHE_HOME:-~/.cache}/lsgd/wheels/<what it was built for>/ and installed
# from there next time. TORCH_CUDA_ARCH_LIST=9.0 compiles for an H100 or H200 alone.
set -euo pipefail

commit=6424da3b4faa6c8f062da4a48c424fff3f02d42d # 2026-07-08
source=https://github.com/NVIDIA/apex
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/cuda.sh"

say() { echo "apex: $*"; }

refuse() {
    say "$*" >&2
    exit 1
}

# --- What is there to build for --------------------------------------------------------------

asked=${1:-${PYTHON:-$here/../.venv/bin/python}}
python=$(command -v "$asked") ||
    refuse "there is no Python at $asked; name the one that has torch: setup/apex.sh PYTHON."

{
    read -r torch
    read -r cuda
    read -r tag
    read -r devices
    read -r beside
    read -r python_header
    read -r installed
} < <("$python" - <<'PY'
import json
import platform
import sys
import sysconfig
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

try:
    import torch
except ImportError as error:
    sys.exit(
        f"apex: {sys.executable} has no torch to build apex for ({error}); run 'make setup', or "
        "install torch there first."
    )

devices = {"%d.%d" % torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
installed = "other" if find_spec("amp_C") else "stranger" if find_spec("apex") else "none"
try:  # pip notes which file a package came from; ours lies in a folder named by its key
    origin = metadata.distribution("apex").read_text("direct_url.json") or "{}"
    folder = Path(unquote(json.loads(origin).get("url", ""))).parent
    if folder.parent.match("lsgd/wheels"):
        installed = folder.name
except metadata.PackageNotFoundError:
    pass

print(torch.__version__)
print(torch.version.cuda or "none")
print(f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}")
print(";".join(sorted(devices)) or "all")
print(Path(torch.__path__[0]).parent)
print(Path(sysconfig.get_path("include")) / "Python.h")
print(installed)
PY
) || exit 1

[[ $cuda != none ]] ||
    refuse "torch $torch of $python is a CPU build, and apex has updates for GPUs alone;" \
        "install a CUDA build of torch first, or leave optim.fused=torch."

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
            "name; '$python -m pip uninstall apex' first, then setup/apex.sh again."
        ;;
esac

# --- Build it, unless the cache has it -------------------------------------------------------

cache=${XDG_CACHE_HOME:-$HOME/.cache}/lsgd/wheels
mkdir -p "$cache" 2>/dev/null ||
    refuse "the wheel cache $cache cannot be written; set XDG_CACHE_HOME to a folder that can."
PATH=$(dirname "$python"):$PATH # a ninja from PyPI lies beside the interpreter

wheel_in_cache() { find "$cache/$key" -name 'apex-*.whl' 2>/dev/null | head -n 1; }

pip() { "$python" -m pip --disable-pip-version-check "$@"; }

build() {
    local release missing='' work log
    find_cuda "$beside" "$cuda"
    [[ -n $cuda_home ]] ||
        refuse "the CUDA toolkit (nvcc) is missing${CUDA_HOME:+ in CUDA_HOME=$CUDA_HOME}; install CUDA" \
            "toolkit $cuda, or set CUDA_HOME to where it is, then run setup/apex.sh again."
    release=$("$cuda_home/bin/nvcc" --version | sed -nE 's/.*release ([0-9.]+),.*/\1/p')
    [[ $release == "$cuda" ]] ||
        refuse "nvcc of $cuda_home is of CUDA ${release:-?}, and torch $torch is built for CUDA $cuda;" \
            "install CUDA toolkit $cuda, or set CUDA_HOME to where it is."
    command -v git >/dev/null || missing="$missing git"
    command -v "${CXX:-c++}" >/dev/null || missing="$missing g++"
    [[ -f $python_header ]] || missing="$missing python3-dev"
    [[ -z $missing ]] ||
        refuse "building it needs$missing, not found here (Debian: 'sudo apt install$missing')."

    # Beside its destination, so that the finished folder moves there in one step and a build
    # running at the same time, or an interrupted one, cannot leave half a wheel behind.
    work=$(mktemp -d "$cache/.build.XXXXXX")
    # shellcheck disable=SC2064  # expanded now on purpose: `work` is local
    trap "rm -rf '$work'" EXIT
    log=$cache/$key.$$.log
    mkdir "$work/wheel"
    complete_cuda "$work/cuda"

    git init --quiet "$work/apex"
    git -C "$work/apex" fetch --quiet --depth 1 "$source" "$commit" ||
        refuse "$source at ${commit:0:12} could not be fetched (see git's message above)."
    git -C "$work/apex" -c advice.detachedHead=false checkout --quiet FETCH_HEAD

    say "compiling ${commit:0:12} for torch $torch with nvcc $release, for ${architectures}, once; log: $log"
    if [[ $architectures == all ]]; then
        say "no GPU is in sight, so it is for every architecture that apex knows; TORCH_CUDA_ARCH_LIST=9.0" \
            "compiles for an H100 or H200 alone."
    fi
    # What compiles has the torch and setuptools of $python; ninja, where it is, uses all cores.
    if ! CUDA_HOME=$cuda_home APEX_CPP_EXT=1 APEX_CUDA_EXT=1 NVCC_APPEND_FLAGS="--threads 4" \
        "$python" -m pip wheel -v --disable-pip-version-check --no-cache-dir --no-build-isolation \
        --no-deps --wheel-dir "$work/wheel" "$work/apex" >"$log" 2>&1; then
        { grep -E -A 3 'error:|Error' "$log" || tail -n 20 "$log"; } | head -n 20 >&2 || true
        refuse "it did not build for torch $torch; the lines above are from its log, $log"
    fi
    # Fails where another build was first; its wheel is as good.
    "$python" -c 'import os, sys; os.rename(*sys.argv[1:])' "$work/wheel" "$cache/$key" 2>/dev/null || true
}

if [[ -z $(wheel_in_cache) ]]; then
    # What its setup.py imports.
    pip install --quiet 'setuptools>=70.1' wheel packaging ninja ||
        refuse "the packages that the build imports could not be installed (see pip's message above)."
    build
fi
wheel=$(wheel_in_cache)
pip install --quiet --no-deps --no-index --force-reinstall "$wheel" ||
    refuse "$wheel could not be installed (see pip's message above)."
if ! problem=$("$python" -c 'import torch, amp_C; from apex.optimizers import FusedSGD' 2>&1); then
    pip uninstall --quiet --yes apex
    refuse "$wheel does not load (${problem##*$'\n'}); delete its folder and run setup/apex.sh again."
fi
say "${commit:0:12} installed from $wheel"
