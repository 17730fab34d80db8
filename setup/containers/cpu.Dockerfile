# lsgd without GPUs, for laptops and CI, with Horovod over Gloo and Open MPI:
#
#     docker build -f setup/containers/cpu.Dockerfile -t lsgd .
#     docker run --rm --init --user "$(id -u):$(id -g)" -v "$PWD:/lsgd" lsgd train recipe=digits
#
# Linted by hadolint and held against the checkout by tests/setup/test_containers.py.
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
    && pip install --extra-index-url https://download.pytorch.org/whl/cpu '.[horovod,imagenet,report,search]' \
    && pip uninstall -y lsgd
COPY lsgd/job/__init__.py lsgd/job/system.py lsgd/job/
COPY setup/horovod.sh setup/build.sh setup/cuda.sh setup/facts.py setup/cxx setup/
RUN LSGD_REQUIRE=horovod setup/horovod.sh python

COPY conf conf
COPY data/digits data/digits
COPY recipes recipes
COPY lsgd lsgd
RUN pip install --no-deps .

FROM python:3.11-slim-bookworm
# A login shell, as Enroot and pyxis start, sets PATH anew: /etc/profile of Debian.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openmpi-bin openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 lsgd \
    && install -d -o lsgd /lsgd \
    && echo "PATH=/opt/lsgd/.venv/bin:\$PATH" > /etc/profile.d/lsgd.sh
COPY --from=build /opt/lsgd/.venv /opt/lsgd/.venv
# HOME is where any --user may write, and USER what torch's cache asks for, who has no name.
ENV PATH=/opt/lsgd/.venv/bin:$PATH HOME=/tmp USER=lsgd LSGD_DATA=/lsgd/data
USER 1000
WORKDIR /lsgd
# Where a site's pyxis starts entrypoints, it runs the job as `sh -c …` through this one.
ENTRYPOINT ["/bin/sh", "-c", "[ \"$1\" != sh ] || exec \"$@\"; exec lsgd \"$@\"", "lsgd"]
CMD ["--help"]
