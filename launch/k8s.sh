#!/usr/bin/env bash
# Submit a Kubeflow job: an MPIJob (v1) or a PyTorchJob.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch k8s "$@"
