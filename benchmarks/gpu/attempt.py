"""One start of a slice: a child with a time limit, of which nothing is left, even after a kill."""

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
    GOES_ON,
    LATE,
    LOG,
    PROMPT,
    REPORT,
    STOPPED,
    Outcome,
    read_outcome,
    write_outcome,
)
from benchmarks.gpu.slices import Slice
from lsgd.errors import Preempted
from lsgd.job.children import GRACE
from lsgd.run.provenance import version
from lsgd.supervise.start import SAVING
from lsgd.trials.attempt import last_line

TAG = "LSGD_GPU_SLICE"
"""The environment variable by which all processes of a slice are found; its value is the folder."""
LEAVING = SAVING + 15.0
"""Seconds that training gets after SIGTERM: a study gives its trials SAVING of them."""
WAKE = 0.1
"""Seconds between looks at the child, the clock and the signals."""


def attempt(each: Slice, folder: Path, limit: float, held: int, signals: Sequence[int]) -> Outcome:
    """Run the slice for at most `limit` seconds, and keep its outcome in its folder.

    What an earlier start has left of a report is removed first; the log goes on. `held` is a
    descriptor whose lock says that somebody is at work: it stays locked until nothing of the slice
    runs any more. `signals` are those that ask this process to end, as they come.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rmtree(folder / REPORT, ignore_errors=True)
    earlier = read_outcome(folder)
    log = folder / LOG
    with log.open("ab") as output:
        output.write(f"{PROMPT}{each.shown(folder)}\n".encode())
        output.flush()
        began = time.monotonic()
        code, late = _run(each, folder, limit, held, signals, output)
    seconds = time.monotonic() - began + (earlier.seconds if earlier else 0)
    outcome, why = _judge(code, late, limit, bool(signals))
    if why:
        why = f"{why}; {last_line(log)}"
    ended = Outcome(outcome, why, each.shown(folder), round(seconds, 1), version())
    write_outcome(folder, ended)
    return ended


def _run(
    each: Slice,
    folder: Path,
    limit: float,
    held: int,
    signals: Sequence[int],
    output: BinaryIO,
) -> tuple[int, bool]:
    """The exit code of the child, and whether it had to be asked to end because of the limit."""
    tag = str(folder.resolve())
    helper = subprocess.Popen(
        # It ends the slice as soon as this process, and with it the end of the pipe, is gone.
        # Python would warn that the package has imported the module already.
        [sys.executable, "-W", "ignore", "-m", "lsgd.job.ending", TAG, tag, str(GRACE)],
        stdin=subprocess.PIPE,
        pass_fds=[held],
        start_new_session=True,
    )
    with helper:
        child = subprocess.Popen(
            [sys.executable, *each.command(folder)],
            env=os.environ | each.environment | {TAG: tag},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C reaches this process alone, which passes it on.
            start_new_session=True,
        )
        deadline = time.monotonic() + limit
        while child.poll() is None and not signals and time.monotonic() < deadline:
            time.sleep(WAKE)
        asked = child.poll() is None
        if asked:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(LEAVING if each.trains else GRACE)
    return child.wait(), asked and not signals


def _judge(code: int, late: bool, limit: float, stopped: bool) -> tuple[str, str]:
    """The outcome of a child by its exit code, and why it is not done."""
    if code == 0:
        return DONE, ""
    if stopped:
        return STOPPED, ""
    if code == Preempted.exit_code:
        return GOES_ON, ""
    if late:
        return LATE, f"it did not end in {limit / 60:g} min"
    how = Signals(-code).name if code < 0 else f"exit code {code}"
    return FAILED, how
