"""What the supervisor has seen and done, kept in the run folder, which it holds for itself."""

import fcntl
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from lsgd.errors import Refused
from lsgd.job import members
from lsgd.job.members import GRACE
from lsgd.run import lock
from lsgd.supervise.folder import CHECKPOINT

FILE = "supervise.log"
RETRY = 0.5
"""Seconds between attempts to lock the folder."""


class Taken(Refused):
    """Another supervisor is at work in the run folder."""


class Logbook:
    """What happens, as lines on the screen and as rows of the run folder's supervise.log."""

    def __init__(self, file: IO[str], screen: IO[str] | None = None) -> None:
        self.file, self.screen = file, screen

    def say(self, event: str, text: str, **values: Any) -> None:
        """Write one event down: a line for people, and a row with these values for programs."""
        now = datetime.now().astimezone()
        print(f"{now:%H:%M:%S} supervise: {text}", file=self.screen or sys.stderr, flush=True)
        row = {"time": now.isoformat(timespec="milliseconds"), "event": event, **values}
        self.file.write(json.dumps(row | {"text": text}) + "\n")
        self.file.flush()


@contextmanager
def open_logbook(
    folder: Path, *, screen: IO[str] | None = None, patience: float = 2 * GRACE
) -> Iterator[Logbook]:
    """The logbook in the run folder, for this supervisor alone; what another has left is stopped.

    Raises Taken if another is at work there for `patience` seconds, and Refused if the folder holds
    files of something else or cannot be written.
    """
    try:
        files = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if files and not files & {"config.yaml", CHECKPOINT, FILE, lock.FILE, "logs"}:
            raise Refused(
                f"run_dir={folder} holds files of something else; write a new or empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / FILE).open("a", encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"run_dir={folder} cannot be written ({error.strerror}); write run_dir=PATH where you "
            "may"
        ) from None
    with file:
        # A supervisor that was killed leaves a helper, which needs a while.
        deadline = time.monotonic() + patience
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise Taken(
                    f"run_dir={folder} has a supervisor already; wait for it, or end it with "
                    "kill PID"
                )
            time.sleep(RETRY)
        logbook = Logbook(file, screen)
        if left := members.stop(folder):
            logbook.say("stopped", f"stopped {len(left)} processes of an earlier start", pids=left)
        yield logbook
