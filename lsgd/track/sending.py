"""Sends a run: what its tracker does not have yet, once, or again and again while it is trained."""

import fcntl
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event, Thread

from lsgd.errors import Refused
from lsgd.run.read import NotARun, Run, read_run
from lsgd.run.rows import read_rows
from lsgd.run.trackers import log_of
from lsgd.track.about import about, conclusion
from lsgd.track.steps import tracked_steps
from lsgd.track.tracker import Tracker, open_tracker

POLL = 2.0
"""Seconds between two looks at the rows of a run that is trained."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two tries to reach a tracker that is down; each pause is twice the one before."""
PATIENCE = 300.0
"""Seconds after the end of a run in which its tracker may come back; then its process ends."""


def send(folder: Path, to: str) -> str:
    """Send what the tracker does not have of the run; returns what was done, in words.

    Raises Refused if the folder has no run, if it is sent by another process now, or if the
    tracker cannot be reached.
    """
    run = _read(folder)
    over = Event()
    over.set()
    with _alone(folder, to, wait=False):
        try:
            tracker = open_tracker(to, about(run, to))
            sent = _deliver(run, tracker, over)
        except Exception as error:  # of any type, since each library has its own
            raise Refused(
                f"{folder} could not be sent to {to} ({_why(error)}); once it can be reached, the "
                "same words send what is missing"
            ) from None
    return f"{folder}: {sent} step{'s' * (sent != 1)} sent, {tracker.where}"


def follow(folder: Path, to: str) -> None:
    """Send the run as its rows come, until standard input ends, and then what is left.

    While the tracker is down it is tried again and again; PATIENCE after the end of the input this
    process ends nevertheless, with exit code 1. What happens is printed, one line each.
    """
    run, down, pause, failed = _read(folder), False, FIRST_PAUSE, -math.inf
    os.nice(10)  # training comes first
    over = _input_is_over(to)
    with _alone(folder, to, wait=True):
        while True:
            try:
                tracker = open_tracker(to, about(run, to))
                _say(f"{to} {'is back' if down else 'has the run'}: {tracker.where}")
                down = False
                _deliver(run, tracker, over)
            except Exception as error:  # of any type, since each library has its own
                if not down:
                    _say(f"{to} cannot be reached and is tried again and again ({_why(error)})")
                # One that can be reached and takes nothing is no reason to hurry either.
                again = time.monotonic() - failed < 2 * LONGEST_PAUSE
                pause = min(2 * pause, LONGEST_PAUSE) if again else FIRST_PAUSE
                down, failed = True, time.monotonic()
                time.sleep(pause)
            else:
                _say(f"{to} has everything")
                return


def _deliver(run: Run, tracker: Tracker, over: Event) -> int:
    """Send what comes after the tracker's last step, until it is over; returns how many steps.

    A step that the tracker has is not sent again, even if a resumed run has made it again: the run
    is the same there, but for its speed.
    """
    sent, last = 0, tracker.last_step()
    while True:
        nothing_comes = over.is_set()  # asked first, since rows are written until it is over
        run = replace(run, rows=read_rows(run.path / "metrics.jsonl"))
        new = [step for step in tracked_steps(run) if step.number > last]
        if new:
            tracker.send(new)
            sent, last = sent + len(new), new[-1].number
        if nothing_comes:
            tracker.end(conclusion(run))
            return sent
        over.wait(POLL)


@contextmanager
def _alone(folder: Path, to: str, *, wait: bool) -> Iterator[None]:
    """Within this context no other process sends the run of this folder to the tracker.

    Raises Refused if one does so now, unless its end is to be waited for, or if the folder cannot
    be written.
    """
    path = log_of(folder, to)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise Refused(
                f"another process sends {folder} to {to} now and will send everything; read {path}"
            ) from None
        except OSError as error:
            raise Refused(
                f"{path} cannot be written ({error.strerror}), nor what is to be remembered of the "
                "run; copy the run folder to where you may write"
            ) from None
        yield


def _input_is_over(to: str) -> Event:
    """An event that is set when standard input ends; PATIENCE later this process ends."""
    over = Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        over.set()
        time.sleep(PATIENCE)
        _say(f"{to} has not got everything in {PATIENCE:g} s after the end of the run")
        os._exit(1)

    Thread(target=watch, name="end of input", daemon=True).start()
    return over


def _read(folder: Path) -> Run:
    try:
        return read_run(folder)
    except NotARun as why:
        raise Refused(f"{folder} has no run to send: {why}; give the folder of a run") from None


def _why(error: Exception) -> str:
    """The error in one line; those of web libraries have many."""
    return (str(error) or repr(error)).splitlines()[0][:200]


def _say(text: str) -> None:
    print(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}", flush=True)
