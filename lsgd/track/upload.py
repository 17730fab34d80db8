"""The upload of a run to a tracker, once, or continuously while the run trains."""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from lsgd.errors import UsageError
from lsgd.files import lock
from lsgd.run.read import NotARunError, Run, read_run
from lsgd.run.rows import read_rows
from lsgd.run.trackers import log_of
from lsgd.sanitizing import sanitize
from lsgd.track.run_info import RunOutcome, TrackedRunInfo, run_outcome, tracked_run_info
from lsgd.track.steps import TrackedStep, tracked_steps

POLL = 2.0
"""The interval at which the rows of a training run are read, in seconds."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""The first and longest pause before a retry to reach a tracker, in seconds; pauses double."""
DRAIN_TIMEOUT = 300.0
"""The time limit for sending the remaining rows after the end of a run, in seconds."""
WITHOUT_LOCKS = (
    "copy the run folder to a drive with locks, such as a local disk, and send it from there with "
    "python -m lsgd.track RUN --to TRACKER"
)


class Tracker(Protocol):
    """The interface of a run at an experiment tracker, found by its id or created.

    If the tracker is down, the methods raise any error of its library; the caller then opens the
    run again.
    """

    address: str
    """The address or folder at which people find the run."""

    def last_step(self) -> int:
        """Return the last training step whose metrics the tracker has, or 0."""

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Send the metrics of training steps after the last one sent, each step atomically."""

    def finish(self, conclusion: RunOutcome) -> None:
        """Send the training run's outcome and wait until the tracker has all data."""


def open_tracker(name: str, about: TrackedRunInfo) -> Tracker:
    """Open a run at MLflow or Weights & Biases; raise ImportError if its library is missing."""
    try:
        Path.home()
    except RuntimeError:
        # A user without an entry in the system's list, as in a container; the libraries need HOME.
        os.environ["HOME"] = str(about.folder)
    if name == "mlflow":
        from lsgd.track.mlflow import MlflowRun

        return MlflowRun(about)
    from lsgd.track.wandb import WandbRun

    return WandbRun(about)


def send_run(folder: Path, tracker_name: str) -> str:
    """Upload to a tracker the training steps of a run that it does not have; return a summary.

    Raises UsageError if the folder has no run, if another process is sending it, or if the tracker
    cannot be reached.
    """
    run = _read(folder)
    over = Event()
    over.set()
    with _upload_lock(folder, tracker_name, wait=False):
        try:
            tracker = open_tracker(tracker_name, tracked_run_info(run, tracker_name))
            sent = _deliver(run, tracker, over)
        except UsageError:
            raise
        except Exception as error:  # each library raises its own types
            raise UsageError(
                f"{folder} could not be sent to {tracker_name} ({_why(error)}); once it can be "
                "reached, rerun the same command to send the rest"
            ) from None
    return sanitize(f"{folder}: {sent} step{'s' * (sent != 1)} sent, {tracker.address}")


def follow_run(folder: Path, tracker_name: str) -> None:
    """Upload new rows of a run to a tracker until standard input ends, then the remaining rows.

    While the tracker is down this process retries. DRAIN_TIMEOUT seconds after the end of the input
    it exits with code 1 even so. It prints one line for each change of the connection.
    """
    run, down, pause, failed = _read(folder), False, FIRST_PAUSE, -math.inf
    os.nice(10)  # the training run has priority
    over = _stdin_closed_event(tracker_name)
    with _upload_lock(folder, tracker_name, wait=True):
        while True:
            try:
                tracker = open_tracker(tracker_name, tracked_run_info(run, tracker_name))
                _say(
                    f"{tracker_name} {'can be reached again' if down else 'has the run'}: "
                    f"{tracker.address}"
                )
                down = False
                _deliver(run, tracker, over)
            except UsageError:
                raise
            except Exception as error:  # each library raises its own types
                if not down:
                    _say(f"{tracker_name} cannot be reached; retrying ({_why(error)})")
                # The pause also doubles if the tracker can be opened but rejects the rows.
                again = time.monotonic() - failed < 2 * LONGEST_PAUSE
                pause = min(2 * pause, LONGEST_PAUSE) if again else FIRST_PAUSE
                down, failed = True, time.monotonic()
                time.sleep(pause)
            else:
                _say(f"{tracker_name} has everything")
                return


def _deliver(run: Run, tracker: Tracker, over: Event) -> int:
    """Send a run's new steps to a tracker until the event `over` is set; return their number.

    A step that the tracker has is not sent again, even if a resumed run has repeated it: only its
    speed can differ.
    """
    sent, last = 0, tracker.last_step()
    while True:
        nothing_comes = over.is_set()  # before the rows are read, as rows are written until then
        run = replace(run, rows=read_rows(run.path / "metrics.jsonl"))
        new = [step for step in tracked_steps(run) if step.number > last]
        if new:
            tracker.send(new)
            sent, last = sent + len(new), new[-1].number
        if nothing_comes:
            tracker.finish(run_outcome(run))
            return sent
        over.wait(POLL)


@contextmanager
def _upload_lock(folder: Path, to: str, *, wait: bool) -> Iterator[None]:
    """Hold a lock within this context so that no other process uploads the run to the tracker.

    Raises UsageError if another process holds the lock and `wait` is false, or if the folder
    cannot be written or is on a drive without locks.
    """
    path = log_of(folder, to)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("ab"))
            alone = lock(file, wait=wait, remedy=WITHOUT_LOCKS)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be written ({error.strerror}), which must hold the id of the "
                "run; copy the run folder to where you can write"
            ) from None
        if not alone:
            raise UsageError(f"another process is sending {folder} to {to}; read {path}")
        yield


def _stdin_closed_event(to: str) -> Event:
    """Return an event set when standard input ends; exit DRAIN_TIMEOUT seconds after that."""
    over = Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        over.set()
        time.sleep(DRAIN_TIMEOUT)
        _say(f"{to} did not receive everything within {DRAIN_TIMEOUT:g} s after the end of the run")
        os._exit(1)

    Thread(target=watch, name="end of input", daemon=True).start()
    return over


def _read(folder: Path) -> Run:
    try:
        return read_run(folder)
    except NotARunError as why:
        raise UsageError(f"{folder} has no run to send: {why}; give the folder of a run") from None


def _why(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return sanitize((str(error) or repr(error)).splitlines()[0])[:200]


def _say(text: str) -> None:
    print(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {sanitize(text)}", flush=True)
