#!/usr/bin/env bash
# One job under horovodrun, on this machine or on --hosts.
source "$(dirname "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m lsgd.launch horovodrun "$@"
