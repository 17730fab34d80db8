"""One start of a benchmark slice, as a child process with a time limit.

All processes of the child are ended, even if this one is killed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from signal import Signals
from typing import BinaryIO

from benchmarks.gpu.outcome import (
    DONE,
    FAILED,
    LOG,
    OUT_OF_TIME,
    PROMPT,
    REPORT,
    RESUMABLE,
    STOPPED,
    SliceOutcome,
    read_outcome,
    write_outcome,
)
from benchmarks.gpu.slices import Slice
from lsgd.errors import PreemptedError
from lsgd.job.ending import GRACE, cleanup_process
from lsgd.launch.status import last_line
from lsgd.run.provenance import version
from lsgd.supervise.start import SAVING

TAG = "LSGD_GPU_SLICE"
"""The environment variable that marks all processes of a slice; its value is the folder."""
PREEMPTION_SECONDS = SAVING + 15.0
"""The seconds that training gets after SIGTERM; a study gives its runs SAVING seconds of them."""
WAKE = 0.1
"""The seconds between checks of the child, the clock and the signals."""


def run_slice(
    each: Slice, folder: Path, limit: float, lock_descriptor: int, signals: Sequence[int]
) -> SliceOutcome:
    """Run a benchmark slice for at most `limit` seconds, and save its outcome in its folder.

    The report of an earlier start is removed first; the log is appended to. `held` is the
    descriptor that locks the results folder: the lock stays until no process of the slice runs any
    more. `signals` is the growing list of signals that ask this process to end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rmtree(folder / REPORT, ignore_errors=True)
    earlier = read_outcome(folder)
    log = folder / LOG
    with log.open("ab") as output:
        output.write(f"{PROMPT}{each.shell_command(folder)}\n".encode())
        output.flush()
        began = time.monotonic()
        code, late = _run(each, folder, limit, lock_descriptor, signals, output)
    seconds = time.monotonic() - began + (earlier.seconds if earlier else 0)
    outcome, why = _judge(code, late, limit, bool(signals))
    if why:
        why = f"{why}; {log} ends with: {last_line(log)}"
    ended = SliceOutcome(outcome, why, each.shell_command(folder), round(seconds, 1), version())
    write_outcome(folder, ended)
    return ended


def _run(
    each: Slice, folder: Path, limit: float, held: int, signals: Sequence[int], output: BinaryIO
) -> tuple[int, bool]:
    """Run the child; return its exit code, and whether it was ended because of the limit."""
    tag = str(folder.resolve())
    with cleanup_process((TAG, tag), keep=[held]):
        child = subprocess.Popen(
            [sys.executable, *each.command(folder)],
            env=os.environ | each.environment | {TAG: tag},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C reaches only this process, which ends the child.
            start_new_session=True,
        )
        deadline = time.monotonic() + limit
        while child.poll() is None and not signals and time.monotonic() < deadline:
            time.sleep(WAKE)
        asked = child.poll() is None
        if asked:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(PREEMPTION_SECONDS if each.is_resumable else GRACE)
    return child.wait(), asked and not signals


def _judge(code: int, late: bool, limit: float, stopped: bool) -> tuple[str, str]:
    """Return a child's outcome by its exit code, and the reason if it is not done."""
    if code == 0:
        return DONE, ""
    if stopped:
        return STOPPED, ""
    if code == PreemptedError.exit_code:
        return RESUMABLE, ""
    if late:
        return OUT_OF_TIME, f"it did not end in {limit / 60:g} min"
    how = Signals(-code).name if code < 0 else f"exit code {code}"
    return FAILED, how
