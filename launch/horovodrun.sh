#!/usr/bin/env bash
# Start a job under horovodrun, on this machine or on --hosts.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/python.sh" || exit
exec "$PYTHON" -m lsgd.launch horovodrun "$@"
