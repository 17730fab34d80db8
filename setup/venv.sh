#!/usr/bin/env bash
# Make .venv: setup/venv.sh [PYTHON]
#
# Without PYTHON, use the first Python in PATH that lsgd supports and that can make one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Compatible with very old Pythons; exit status 3 means that the reason is on stderr.
check='
import sys
reason = None
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    reason = "%s is Python %d.%d"
else:
    try:
        import ensurepip, venv
    except ImportError:
        reason = "%s has no venv or no ensurepip (Debian: sudo apt install python%d.%d-venv)"
if reason:
    sys.stderr.write(reason % ((sys.executable,) + sys.version_info[:2]))
    sys.exit(3)
'
# make comes here a second time if the Python does not start, or another version finds no packages. It is
# not removed unasked: a network drive or a module of the machine may be missing for now.
if [[ -e .venv/.python ]]; then
    echo "lsgd: the Python of .venv is gone or has changed, as after an upgrade of the system;" \
        "'rm -rf .venv', then rerun the same command" >&2
    exit 1
fi
reasons=
candidates=("$@")
if [[ -z ${1:-} ]]; then candidates=(python3.11 python3.12 python3.13 python3 python); fi
for python in "${candidates[@]}"; do
    command -v "$python" >/dev/null || continue
    status=0
    reason=$("$python" -c "$check" 2>&1) || status=$?
    if ((status == 0)); then
        echo "$python -m venv .venv"
        "$python" -m venv .venv && exit
        echo "lsgd: $python could not make .venv (see its message above)." >&2
        exit 1
    fi
    if ((status == 3)) && [[ $reasons != *"$reason"* ]]; then reasons="$reasons; $reason"; fi
done
reasons=${reasons:-, and none is at ${candidates[*]}}
echo "lsgd needs Python 3.11, 3.12 or 3.13$reasons; name one: make PYTHON=/path/to/python3.12" >&2
exit 1
