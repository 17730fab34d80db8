# shellcheck shell=bash
# Sourced by the build scripts: find a complete CUDA toolkit, and make it usable for a linker.

# A file of each part of a toolkit that a build uses, and the extra of PyPI's cuda-toolkit that installs
# it: nvcc, the programs and headers that nvcc uses, and those that torch's extension headers include.
cuda_parts=(
    bin/nvcc=nvcc
    nvvm/bin/cicc=nvvm
    include/crt/host_config.h=crt
    include/cuda_runtime.h=cudart
    include/nv/target=cccl
    include/cublas_v2.h=cublas
    include/cusolverDn.h=cusolver
    include/cusparse.h=cusparse
)

# Set cuda_home to the first toolkit that has all of cuda_parts and whose release matches the pattern
# $3: the one in CUDA_HOME if that is set, else that of the nvcc in PATH, PyPI's, or /usr/local/cuda.
# $1 is the folder of torch and $2 the CUDA version that torch is built for. If none is found, cuda_home
# is empty, cuda_lacks lists what each toolkit lacks, and cuda_remedy how to install a complete one.
find_cuda() {
    local nvcc part lacks release number extras='' of_pypi="$1/nvidia/cu${2%%.*}"
    local places=("${CUDA_HOME:-}")
    if [[ -z ${CUDA_HOME:-} ]]; then
        # Most machines have no nvcc in PATH, which is not an error.
        nvcc=$(command -v nvcc) && nvcc=$(readlink -f "$nvcc") || nvcc=
        places=("${nvcc%/bin/nvcc}" "$of_pypi")
        if [[ ! /usr/local/cuda -ef ${places[0]} ]]; then places+=(/usr/local/cuda); fi
    fi
    cuda_lacks=
    for cuda_home in "${places[@]}"; do
        lacks=
        number=0
        for part in "${cuda_parts[@]}"; do
            if [[ -e $cuda_home/${part%%=*} ]]; then continue; fi
            lacks="$lacks${lacks:+, }${part%%=*}"
            number=$((number + 1))
        done
        if [[ -z $lacks ]]; then
            release=$("$cuda_home/bin/nvcc" --version) || release=
            if [[ $release =~ release\ ([0-9.]+), ]]; then release=${BASH_REMATCH[1]}; else release=; fi
            # shellcheck disable=SC2053  # a pattern
            if [[ $release == $3 ]]; then return; fi
            lacks="$cuda_home is of CUDA ${release:-?}"
        elif [[ -z ${CUDA_HOME:-} ]] && ((number >= ${#cuda_parts[@]} - 1)); then
            continue # no toolkit: nothing, or a script in PATH that runs the nvcc of one
        else
            lacks="$cuda_home lacks $lacks"
        fi
        cuda_lacks="$cuda_lacks${cuda_lacks:+; }$lacks"
    done
    cuda_home=
    cuda_remedy="install CUDA toolkit $2"
    if ((${2%%.*} >= 13)); then # older ones on PyPI have a folder for each part
        for part in "${cuda_parts[@]}"; do extras="$extras${extras:+,}${part#*=}"; done
        # shellcheck disable=SC2154  # set by learn
        cuda_remedy="$cuda_remedy ('$python -m pip install \"cuda-toolkit[$extras]==$2.*\"')"
    fi
    cuda_remedy="$cuda_remedy, or set CUDA_HOME to where one is"
}

# PyPI's toolkit has its libraries in lib, only under names with a version, but nvcc and the linker
# look in lib64 for names without one: then link the toolkit to the folder $1, with lib64, and set
# cuda_home to it.
complete_cuda() {
    local library name
    if [[ -e $cuda_home/lib64/libcudart.so ]]; then return; fi
    mkdir -p "$1/bin" "$1/lib64"
    ln -s "$cuda_home"/bin/* "$1/bin" # nvcc looks in bin/../lib64, so bin must not be a link
    for library in "$cuda_home"/lib*/lib*; do
        name=${library##*/}
        ln -sf "$library" "$1/lib64/$name"
        if [[ $name == *.so.* ]]; then ln -sf "$library" "$1/lib64/${name%%.so.*}.so"; fi
    done
    ln -s "$cuda_home"/{include,nvvm} "$1"
    cuda_home=$1
}
