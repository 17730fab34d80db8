"""One job at a time in a run folder: process 0 holds a file there for as long as it writes.

On one machine the kernel says whether the holder lives: it has locked the file, and a lock ends
with its process, however that ends. So a run that was killed goes on at once. Of a holder on
another machine no lock can be trusted, as some network drives have none, some keep them to the
machine, and some keep those of a dead machine for a while. There a thread of the holder touches the
file every few seconds, and who comes later watches for a change. Times are compared with earlier
ones of the same file only, so clocks may say what they like.
"""

import fcntl
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

from lsgd.errors import Refused

FILE = "job.lock"
BEAT = 5.0
"""Seconds between two touches of the file."""
WATCH = 4 * BEAT
"""Seconds without a touch after which a holder on another machine is dead."""
DYING = 5.0
"""Seconds that a process of this machine may take to leave and to end after a kill."""
SETTLING = 1.0
"""Seconds in which two that have found the same dead holder see which of them comes next."""
POLL = 0.1


@dataclass(frozen=True)
class Holder:
    """The process that writes in a run folder, as its file there has it."""

    host: str
    boot: str
    """What tells machines of one name apart, and a machine from itself before a restart."""
    pid: int
    since: str
    """When it began, by its own clock: for people, and compared with nothing."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Within this context no other job opens the folder, which is left as it was.

    Raises Refused, having written nothing, while another job is there, and OSError if the folder
    cannot be written. A holder whose folder was given to another job, as it was stopped for so long
    that it passed for dead, ends at once when it goes on, since both would write there.
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
        with suppress(OSError):  # what stays on a drive that is away is that of a dead holder
            if _names(path, file):
                path.unlink()
        file.close()  # the lock last: whoever comes now sees that the file is no longer there


def _taken(path: Path) -> BinaryIO:
    """The file, made and locked by this process."""
    doubtful = False
    while True:
        try:
            file = path.open("x+b", buffering=0)
        except FileExistsError:
            doubtful = _removed(path)
            continue
        with suppress(OSError):  # on a drive without locks the touches have to do
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            since = f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}"
            holder = Holder(platform.node(), _boot(), os.getpid(), since)
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
    """Remove the file of a holder that is dead; raises Refused if it lives.

    Returns whether that was judged by its silence, which another may do at the same moment.
    """
    first, begin = None, time.monotonic()
    while True:
        try:
            # Opened anew each time, since only then a network drive asks its server.
            with path.open("r+b", buffering=0) as file:
                locked = _locked(file)
                content, touched = file.read(), os.fstat(file.fileno()).st_mtime_ns
                first = first or (content, touched)
                holder, seconds = _holder(content), time.monotonic() - begin
                near = holder and (holder.host, holder.boot) == (platform.node(), _boot())
                if near and locked is not None:
                    lives = not locked and seconds > DYING
                else:
                    lives = (content, touched) != first
                if lives:
                    raise Refused(_sentence(path, holder))
                silent = seconds > WATCH
                if (near and locked) or silent:
                    if _names(path, file):
                        path.unlink()
                    return silent
        except FileNotFoundError:
            return False  # its holder has ended
        time.sleep(POLL)


def _locked(file: BinaryIO) -> bool | None:
    """Lock the file; False if another process has locked it, None if this drive has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _names(path: Path, file: BinaryIO) -> bool:
    """Whether the path is that of this file, and not of none or of a later one."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _holder(content: bytes) -> Holder | None:
    """The holder that the file tells of; None while its holder has not written that."""
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _sentence(path: Path, holder: Holder | None) -> str:
    who = "a process that has just started"
    if holder:
        who = f"process {holder.pid} on {holder.host}, since {holder.since}"
    return (
        f"run_dir={path.parent} is being written by another job ({who}); wait for its end or end "
        "it, or write another run_dir"
    )


def _touch(path: Path, file: BinaryIO, over: Event) -> None:
    """Touch the file until it is over, which takes no part of the interpreter in between."""
    while not over.wait(BEAT):
        with suppress(OSError):  # a drive that is away for a while
            os.utime(file.fileno())
            if not _names(path, file) and path.exists():
                other = _sentence(path, _holder(path.read_bytes()))
                print(f"lsgd: passed for dead while it was stopped: {other}", file=sys.stderr)
                sys.stderr.flush()
                os._exit(Refused.exit_code)
