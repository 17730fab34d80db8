#!/usr/bin/env bash
# Start a job under horovodrun, on this machine or on --hosts.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch horovodrun "$@"
