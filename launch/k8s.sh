#!/usr/bin/env bash
# One Kubeflow job: an MPIJob (v1) or a PyTorchJob.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch k8s "$@"
