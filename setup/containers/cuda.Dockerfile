# lsgd for clusters with NVIDIA's GPUs, with DALI, and Horovod over NCCL and Open MPI, as the images of
# `lsgd launch k8s --image` and `lsgd launch slurm --container` have to be:
#
#     docker build -f setup/containers/cuda.Dockerfile -t registry.example/lsgd:1 .
#     docker run --rm --init --gpus all --shm-size 8g -v /data:/lsgd/data registry.example/lsgd:1 doctor
#
# CUDA's libraries are those that torch brings along, and its compiler, from PyPI too, is there while
# Horovod is built: --build-arg HOROVOD_BUILD_CUDA_CC_LIST=90 for an H100 or H200 alone. The driver
# is the host's.
#
# Linted by hadolint and held against the checkout by tests/setup/test_containers.py; not built yet.
# hadolint global ignore=DL3008,DL3013
# Packages of Python are pinned by constraints.txt, which hadolint does not see. Those of Debian are
# not, as its mirrors keep the newest alone.

FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ libopenmpi-dev make openmpi-bin \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/lsgd
ENV PATH=/opt/lsgd/.venv/bin:$PATH PIP_CONSTRAINT=/opt/lsgd/constraints.txt PIP_NO_CACHE_DIR=1

# The layers of minutes, which change with versions and not with the code: what lsgd imports, for
# which an empty package of its name asks, and Horovod.
COPY constraints.txt hatch_build.py pyproject.toml README.md LICENSE ./
COPY lsgd/__init__.py lsgd/
RUN python -m venv .venv \
    && mkdir -p conf recipes data/digits \
    && pip install '.[dali,horovod,imagenet,report,search]' \
    && pip uninstall -y lsgd
COPY lsgd/job/__init__.py lsgd/job/system.py lsgd/job/
COPY setup/horovod.sh setup/build.sh setup/cuda.sh setup/facts.py setup/cxx setup/
ARG HOROVOD_BUILD_CUDA_CC_LIST=80,90,100
RUN cuda=$(python -c 'import torch; print(torch.version.cuda)') \
    && pip install "cuda-toolkit[nvcc,nvvm,crt,cccl]==$cuda.*" \
    && LSGD_REQUIRE=horovod setup/horovod.sh python \
    && python -c 'import horovod.torch as hvd; assert hvd.nccl_built() and hvd.mpi_built()' \
    && pip uninstall -y nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-cccl nvidia-nvvm

COPY conf conf
COPY data/digits data/digits
COPY recipes recipes
COPY lsgd lsgd
RUN pip install --no-deps .

FROM python:3.11-slim-bookworm
# gcc is for kernels that Triton makes while training; ibverbs-providers for NCCL over InfiniBand. A
# login shell, as Enroot and pyxis start, sets PATH anew: /etc/profile of Debian.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc ibverbs-providers libc6-dev openmpi-bin \
        openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 lsgd \
    && install -d -o lsgd /lsgd \
    && echo "PATH=/opt/lsgd/.venv/bin:\$PATH" > /etc/profile.d/lsgd.sh
COPY --from=build /opt/lsgd/.venv /opt/lsgd/.venv
# HOME is where any --user may write, and USER what torch's cache asks for, who has no name; the
# last two are what NVIDIA's container toolkit mounts.
ENV PATH=/opt/lsgd/.venv/bin:$PATH HOME=/tmp USER=lsgd LSGD_DATA=/lsgd/data \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
USER 1000
WORKDIR /lsgd
# Where a site's pyxis starts entrypoints, it runs the job as `sh -c …` through this one.
ENTRYPOINT ["/bin/sh", "-c", "[ \"$1\" != sh ] || exec \"$@\"; exec lsgd \"$@\"", "lsgd"]
CMD ["--help"]
