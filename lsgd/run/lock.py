"""The lock of a run folder: one job at a time, whose process 0 holds a lock file while it writes.

On one machine the kernel tells whether the holder is alive: it has locked the file, and a lock ends
with its process, however that ends. So a killed run can resume at once. For a holder on another
machine no lock can be trusted: some network drives have none, some keep them local to a machine,
and some keep those of a dead machine for a while. There a thread of the holder touches the file
every few seconds, and a new job watches for a change. File times are compared with earlier times of
the same file only, so clocks need not agree.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from lsgd import files
from lsgd.errors import UsageError
from lsgd.job.system import boot_id

FILE = "job.lock"
BEAT = 5.0
"""The seconds between two touches of the lock file."""
WATCH = 4 * BEAT
"""The seconds without a touch after which a holder on another machine counts as dead."""
DYING = 5.0
"""The seconds that a process of this machine may take to exit after a kill."""
SETTLING = 1.0
"""The seconds that two jobs which found the same dead holder wait to see who succeeds."""
POLL = 0.1


@dataclass(frozen=True)
class LockHolder:
    """A record of the process that holds a run folder's lock, as written in the lock file."""

    host: str
    boot: str
    """The boot id: it tells machines of one name apart, and a machine before and after a reboot."""
    pid: int
    since: str
    """The start time by the holder's own clock, for people; it is compared with nothing."""


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold a run folder's lock against other jobs within this context, then remove its file.

    Raises UsageError, having written nothing, while another job holds it, and OSError if the folder
    cannot be written. A holder that was stopped for so long that it counted as dead, and whose
    folder another job has taken, exits as soon as it continues, since both would write there.
    """
    path = folder / FILE
    file = _taken(path)
    over = Event()
    beat = Thread(target=_touch, args=(path, file, over), name="job.lock", daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()
        with suppress(OSError):  # a file left on an unreachable drive counts as a dead holder's
            if _names(path, file):
                path.unlink()
        file.close()  # the lock last: a new job then sees that the file has been removed


def _taken(path: Path) -> BinaryIO:
    """Create and lock a run folder's lock file, replacing a dead holder's, and return it open."""
    doubtful = False
    while True:
        try:
            file = path.open("x+b", buffering=0)
        except FileExistsError:
            doubtful = _removed(path)
            continue
        # On a drive without locks the touches are the only sign of life.
        with suppress(OSError, files.NoLocksError):
            files.lock(file, wait=True)
        try:
            since = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}"
            holder = LockHolder(platform.node(), boot_id(), os.getpid(), since)
            file.write(json.dumps(asdict(holder)).encode())
        except OSError:
            path.unlink()
            file.close()
            raise
        if doubtful:
            time.sleep(SETTLING)
        if _names(path, file):
            return file
        file.close()


def _removed(path: Path) -> bool:
    """Wait until a lock file's holder proves dead, and remove the file; raise UsageError if alive.

    Returns whether the judgement rests on missing touches, in which case another job may judge so
    at the same moment.
    """
    first, begin = None, time.monotonic()
    while True:
        try:
            # Opened anew each time, since a network drive asks its server only then.
            with path.open("r+b", buffering=0) as file:
                locked = _locked(file)
                content, touched = file.read(), os.fstat(file.fileno()).st_mtime_ns
                first = first or (content, touched)
                holder, seconds = _holder(content), time.monotonic() - begin
                near = holder and (holder.host, holder.boot) == (platform.node(), boot_id())
                if near and locked is not None:
                    lives = not locked and seconds > DYING
                else:
                    lives = (content, touched) != first
                if lives:
                    raise UsageError(_sentence(path, holder))
                silent = seconds > WATCH
                if (near and locked) or silent:
                    if _names(path, file):
                        path.unlink()
                    return silent
        except FileNotFoundError:
            return False  # its holder has removed it
        time.sleep(POLL)


def _locked(file: BinaryIO) -> bool | None:
    """Try to lock a file; return whether that succeeded, or None if its drive supports no locks."""
    try:
        return files.lock(file, wait=False)
    except (OSError, files.NoLocksError):
        return None


def _names(path: Path, file: BinaryIO) -> bool:
    """Return whether this open file is still the one at this path, neither removed nor replaced."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _holder(content: bytes) -> LockHolder | None:
    """Parse a lock file's content into a record of its holder; None if it is incomplete."""
    try:
        return LockHolder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _sentence(path: Path, holder: LockHolder | None) -> str:
    who = "a process that has just started"
    if holder:
        who = f"process {holder.pid} on {holder.host}, since {holder.since}"
    return (
        f"run_dir={path.parent} is being written by another job ({who}); wait for it or stop it, "
        "or write another run_dir"
    )


def _touch(path: Path, file: BinaryIO, over: Event) -> None:
    """Touch the lock file every BEAT seconds until `over` is set; exit if another job took over."""
    while not over.wait(BEAT):
        with suppress(OSError):  # a drive that is away for a while
            os.utime(file.fileno())
            if not _names(path, file) and path.exists():
                other = _sentence(path, _holder(path.read_bytes()))
                text = f"lsgd: taken for dead while it was stopped: {other}"
                print(text, file=sys.stderr, flush=True)
                os._exit(UsageError.exit_code)
