# shellcheck shell=bash
# Sourced by the launch scripts: set PYTHON, by default to the checkout's Python, else to python3.
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ -z ${PYTHON:-} && -x $checkout/.venv/bin/python ]]; then PYTHON=$checkout/.venv/bin/python; fi
export PYTHON=${PYTHON:-python3}
if ! command -v "$PYTHON" >/dev/null; then
    echo "lsgd: there is no Python at $PYTHON; run 'make setup', or set PYTHON" >&2
    exit 2
fi
status=0
"$PYTHON" -c 'import sys; sys.version_info < (3, 11) and sys.exit(3); import lsgd.launch' 2>/dev/null || status=$?
if ((status == 3)); then
    echo "lsgd: $PYTHON is older than Python 3.11; run 'make setup', or set PYTHON" >&2
    exit 1
elif ((status)); then
    echo "lsgd: $PYTHON cannot import lsgd; run 'make setup', or set PYTHON" >&2
    exit 1
fi
