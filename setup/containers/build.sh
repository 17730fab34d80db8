#!/usr/bin/env bash
# Build an image of lsgd, which is named by its version, and print the name:
#
#     setup/containers/build.sh cpu                       # lsgd:0.1.0-cpu
#     setup/containers/build.sh cuda registry.example/    # registry.example/lsgd:0.1.0-cuda
#     setup/containers/build.sh cpu "" --no-cache         # without a registry
#
# Arguments after the registry go to docker, podman or buildah, whichever is installed first.
set -euo pipefail
kind=${1:-}
if [[ ! -f $(dirname "$0")/$kind.Dockerfile ]]; then
    echo "lsgd: there is no image ${kind:-without a name}; write cpu or cuda" >&2
    exit 2
fi
registry=${2:-}
if [[ $registry == -* ]]; then
    echo "lsgd: the second argument, $registry, must be a registry; write \"\" before options" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' lsgd/__init__.py)
name=${registry}lsgd:$version-$kind
for engine in docker podman buildah; do
    if command -v "$engine" >/dev/null; then
        "$engine" build -f "setup/containers/$kind.Dockerfile" -t "$name" \
            --label "org.opencontainers.image.version=$version" "${@:3}" .
        echo "$name"
        exit
    fi
done
echo "lsgd: no docker, podman or buildah is installed; install one, such as 'apt install buildah'" >&2
exit 2
