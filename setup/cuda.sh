# shellcheck shell=bash
# Sourced by the scripts that compile: where the CUDA toolkit is, and one that a linker understands.

# Set cuda_home to the toolkit in CUDA_HOME if that is set, else to the first that is found, or to
# nothing. $1 is the folder in which torch lies and $2 the CUDA that torch is built for: a toolkit
# from PyPI (nvidia-cuda-nvcc, -crt, -cccl and nvidia-nvvm) is beside torch, in nvidia/cu13.
find_cuda() {
    local nvcc places=("${CUDA_HOME:-}")
    if [[ -z ${CUDA_HOME:-} ]]; then
        # Most machines have no nvcc in PATH, which is no failure.
        nvcc=$(command -v nvcc) && nvcc=$(readlink -f "$nvcc") || nvcc=
        places=("${nvcc%/bin/nvcc}" "$1/nvidia/cu${2%%.*}" /usr/local/cuda)
    fi
    for cuda_home in "${places[@]}" ''; do
        if [[ -x $cuda_home/bin/nvcc && -f $cuda_home/include/cuda_runtime.h ]]; then return; fi
    done
}

# PyPI's toolkit has its libraries in lib, each under the name with its version alone, and nvcc and
# the linker look in lib64 for the name without: then link the toolkit to the folder $1, with lib64,
# and set cuda_home to that.
complete_cuda() {
    local library name
    if [[ -e $cuda_home/lib64/libcudart.so ]]; then return; fi
    mkdir -p "$1/bin" "$1/lib64"
    ln -s "$cuda_home"/bin/* "$1/bin" # nvcc looks in bin/../lib64, and bin may be no link
    for library in "$cuda_home"/lib*/lib*; do
        name=${library##*/}
        ln -sf "$library" "$1/lib64/$name"
        if [[ $name == *.so.* ]]; then ln -sf "$library" "$1/lib64/${name%%.so.*}.so"; fi
    done
    ln -s "$cuda_home"/{include,nvvm} "$1"
    cuda_home=$1
}
