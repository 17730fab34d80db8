#!/usr/bin/env bash
# Submit a Kubeflow job: an MPIJob (v1) or a PyTorchJob.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch k8s "$@"
