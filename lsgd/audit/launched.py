"""The audited command: it runs as it is, with the watch in each of its Python processes."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from lsgd.audit.processes import has_ended_process
from lsgd.errors import UsageError
from lsgd.job.ending import end_tagged

SITE = Path(__file__).parent / "site"
EXAMPLE = "lsgd audit -- python train.py"
"""A command line, for sentences."""
GRACE = 30.0
"""The seconds that a command has for its own end after the watch has ended one of its processes.
After them it gets SIGTERM, and SIGKILL after KILL_AFTER seconds more."""
POLL = 0.1
KILL_AFTER = 5.0


def run_watched(
    command: Sequence[str],
    folder: Path,
    *,
    max_updates: int,
    max_epochs: int,
    prints_to_stderr: bool = False,
) -> int:
    """Run a command until its processes have been watched; return its exit code, or minus a signal.

    It is 0 if the command had to be ended. A process that ends before the watch ends it, such as
    the first of several scripts, sets no time limit to the others.

    The processes write their records to `folder`. Each process is watched for `max_updates`
    updates, or up to the begin of epoch number `max_epochs` (0 for no such limit). With
    `prints_to_stderr` its standard output goes to standard error. Raises UsageError for a command
    that cannot be started.
    """
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    tag = ("LSGD_AUDIT_TAG", uuid.uuid4().hex)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "LSGD_AUDIT": str(folder),
        "LSGD_AUDIT_UPDATES": str(max_updates),
        "LSGD_AUDIT_EPOCHS": str(max_epochs),
        tag[0]: tag[1],
    }
    sys.stdout.flush()
    try:
        output = 2 if prints_to_stderr else None  # the descriptor
        process = subprocess.Popen(command, env=environment, stdout=output)
    except OSError as error:
        how = f"lsgd audit -- python {command[0]}" if command[0].endswith(".py") else EXAMPLE
        raise UsageError(
            f"{command[0]} cannot be started ({error.strerror}); write the command after --, as in "
            f"{how}"
        ) from None
    try:
        return _wait(process, folder)
    except KeyboardInterrupt:
        # At a terminal the command has got Ctrl-C too, and may save something.
        _wait_or_none(process, GRACE)
        raise
    finally:
        end_tagged(tag, KILL_AFTER)
        process.wait()


def _wait(process: subprocess.Popen[bytes], folder: Path) -> int:
    limit = None
    while True:
        code = _wait_or_none(process, POLL)
        if code is not None:
            return code
        if limit is None and has_ended_process(folder):
            limit = time.monotonic() + GRACE
        if limit is not None and time.monotonic() > limit:
            process.send_signal(signal.SIGTERM)
            _wait_or_none(process, KILL_AFTER)
            return 0


def _wait_or_none(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
