"""The supervisor's log in the run folder, which also locks the folder for one supervisor."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from lsgd import files
from lsgd.errors import NotSavedError, UsageError, converting_disk_full, writing_to
from lsgd.files import AppendOnlyFile
from lsgd.job import members
from lsgd.job.ending import GRACE
from lsgd.paths import CHECKPOINT, is_leftover
from lsgd.run import lock
from lsgd.run.read import SUPERVISOR_LOG
from lsgd.sanitizing import mask_passwords, sanitize

LOCK = "supervise.lock"
"""The lock file of a run folder's supervisor; not the log, which a user may remove."""
WITHOUT_LOCKS = (
    "write run_dir=PATH of a folder on a drive with locks, or run the command without "
    "lsgd.supervise, as training needs none"
)
RETRY = 0.5
"""The seconds between attempts to lock the folder."""


class SupervisorLockedError(UsageError):
    """The error that another supervisor is active in the run folder."""


class Logbook:
    """The supervisor's log: lines on the screen, and rows of the run folder's supervise.log."""

    def __init__(self, file: AppendOnlyFile, held: BinaryIO, screen: IO[str] | None = None) -> None:
        self.file, self.screen = file, screen
        self.lock_file = held
        """The open lock file of the folder's supervisor."""

    def log_event(self, event: str, text: str, **values: Any) -> None:
        """Log one event of the supervised job: print a line, and append a row to supervise.log.

        A row that meets a full disk, or an error of its server, is written with a later one, since
        the job goes on meanwhile.
        """
        text, now = sanitize(text), datetime.now().astimezone()
        self._show(text, now)
        row = {"time": now.isoformat(timespec="milliseconds"), "event": event, **values}
        with suppress(OSError):
            self.file.write(mask_passwords(json.dumps(row | {"text": text})).encode() + b"\n")

    def close(self) -> None:
        """Close the log after another try to write the rows that failed; print what prevents it."""
        try:
            self.file.close()
        except OSError as error:
            self.file.unwritten.clear()
            text = f"{SUPERVISOR_LOG} lacks its last rows ({error.strerror})"
            self._show(text, datetime.now().astimezone())

    def _show(self, text: str, now: datetime) -> None:
        with suppress(OSError):  # the terminal may be closed
            print(f"{now:%H:%M:%S} supervise: {text}", file=self.screen or sys.stderr, flush=True)


@contextmanager
def open_logbook(
    folder: Path, *, screen: IO[str] | None = None, patience: float = 2 * GRACE
) -> Iterator[Logbook]:
    """Lock the run folder for this supervisor, stop leftover processes, and yield the log.

    Raises SupervisorLockedError if another supervisor is active there for `patience` seconds,
    UsageError if the folder holds files of something else, cannot be written or is on a drive
    without locks, where the processes of another supervisor would be stopped, and NotSavedError
    if the disk is full at the start, or rows are still unwritten at the end.
    """
    remedy = "write run_dir=PATH for a folder that you can write to"
    with writing_to(f"run_dir={folder}", remedy):
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        names = {name for name in names if not is_leftover(name)}
        known = {"config.yaml", CHECKPOINT, SUPERVISOR_LOG, LOCK, lock.FILE, "logs"}
        if names and not names & known:
            raise UsageError(
                f"run_dir={folder} holds files that are not of a run; write a new or empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        held = (folder / LOCK).open("ab")
    with held:
        # The helper of a killed supervisor holds the lock until it has stopped the job.
        deadline = time.monotonic() + patience
        while not files.lock(held, wait=False, remedy=WITHOUT_LOCKS):
            if time.monotonic() > deadline:
                raise SupervisorLockedError(
                    f"run_dir={folder} has a supervisor already; wait for it, or end it with "
                    "kill PID"
                )
            time.sleep(RETRY)
        with converting_disk_full(folder / SUPERVISOR_LOG):
            file = AppendOnlyFile(folder / SUPERVISOR_LOG)
        logbook = Logbook(file, held, screen)
        try:
            files.truncate_torn_line(folder / SUPERVISOR_LOG)
            if left := members.stop_job(folder):
                logbook.log_event(
                    "stopped", f"stopped {len(left)} processes of an earlier start", pids=left
                )
            yield logbook
        finally:
            logbook.close()
        if file.unwritten:
            raise NotSavedError(
                f"{folder / SUPERVISOR_LOG} could not be written completely, as the disk is "
                "full; free some space and rerun the same command to resume"
            )
