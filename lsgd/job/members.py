"""The processes of a supervised job: their records, their exits, and stopping all of them.

`lsgd.supervise` gives its job the environment variable LSGD_SUPERVISED, the run folder, as a tag
(`lsgd.job.ending`), so that `stop_job` also finds what a dead launcher has left running. A process
of lsgd with this tag keeps a file in the run folder's `supervised/`: its rank, host and pid at the
start, and how it ended, unless it is killed.
"""

import faulthandler
import json
import os
import platform
import select
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Self

from lsgd.errors import PeerLostError, UsageError, writing_to
from lsgd.job.ending import GRACE, end_tagged
from lsgd.job.launcher import LIFE
from lsgd.job.system import has_ended, has_tag, preallocate, tagged_pids, watch_process
from lsgd.sanitizing import sanitize
from lsgd.typed import convert_json
from lsgd.untrusted_files import open_regular, parse_json

JOB_TAG = "LSGD_SUPERVISED"
FOLDER = "supervised"
WORDS = 4096
"""The bytes preallocated for a process's file; unwritten ones are zero."""
LONGEST = 2**16
"""The maximum bytes read of a process's file: two lines, or one and a crash's traceback."""


@dataclass(frozen=True)
class ProcessRecord:
    """The record of one process of a supervised job: rank, host, pid and how the process ended."""

    rank: int
    host: str
    pid: int
    code: int | None = None
    """The exit code; None while the process runs, or if it was killed before it wrote one."""
    why: str = ""
    """The message of the process, or the first line of the traceback of a crash."""
    life: int | None = None
    """The number of earlier starts of this rank; None under launchers that restart none."""

    @property
    def is_restartable(self) -> bool:
        """Whether the launcher restarts this process, once dead, while the other processes go on.

        It does so after a crash, a kill or a lost peer, for every rank but 0, which holds the store
        at which the others meet.
        """
        own = (None, 1, PeerLostError.exit_code)
        return self.life is not None and self.rank > 0 and self.code in own


@contextmanager
def exit_report(rank: int) -> Iterator[Callable[[int, str], int]]:
    """Record this process, and how it exits, in a file of the run folder, if it is supervised.

    The yielded function takes the exit code and the reason, and returns the code. An exception
    counts as exit code 1, and a crash such as a segmentation fault writes its own traceback.
    """
    if JOB_TAG not in os.environ:
        yield lambda code, why: code
        return
    path = Path(os.environ[JOB_TAG], FOLDER, f"{rank}-{platform.node()}-{os.getpid()}.jsonl")
    with _opened(path) as file:

        def say(**what: object) -> None:
            with suppress(OSError):
                os.write(file.fileno(), f"{json.dumps(what)}\n".encode())

        def leave(code: int, why: str) -> int:
            say(code=code, why=why)
            return code

        life = {"life": int(os.environ[LIFE])} if LIFE in os.environ else {}
        say(rank=rank, host=platform.node(), pid=os.getpid(), **life)
        faulthandler.enable(file)
        try:
            yield leave
        except Exception as error:
            say(code=1, why=sanitize(f"{type(error).__name__}: {error}"))
            raise
        finally:
            faulthandler.disable()


def _opened(path: Path) -> BinaryIO:
    """Create a process's record file with preallocated space; open /dev/null if that fails.

    Space for the exit report is reserved, since a full disk may be why the process ends. The job's
    folder may be missing on another machine, where nobody would read the file or remove it.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        file = path.open("wb", buffering=0)
    except OSError:
        return open(os.devnull, "wb", buffering=0)
    with suppress(OSError):  # the disk is full, or the file system has no preallocation
        preallocate(file.fileno(), WORDS)
    return file


def process_records(folder: Path) -> list[ProcessRecord]:
    """Return the records of the processes that have reported in the run folder, sorted by rank.

    They are those since the folder was last cleared. The files may be written by others: an invalid
    file is left out, and a pid belongs to a process of the job only if `is_job_process` confirms
    it. The list is empty if the file server fails: the next look finds the records, and no look
    ends the job.
    """
    found = list[ProcessRecord | None]()
    with suppress(OSError):
        found = [_member(path) for path in (folder / FOLDER).glob("*.jsonl")]
    reported = [member for member in found if member]
    return sorted(reported, key=lambda member: (member.rank, member.host, member.pid))


def is_job_process(pid: int, folder: Path) -> bool | None:
    """Return whether the process with this pid, on this machine, belongs to the run folder's job.

    Returns None if that is unknown, as for a process that has ended.
    """
    return has_tag(pid, (JOB_TAG, str(folder)))


def _member(path: Path) -> ProcessRecord | None:
    """Read the record of a process from its file; None without a complete and valid first line."""
    try:
        with open_regular(path) as file:
            text = file.read(LONGEST).replace(b"\0", b"").decode(errors="replace")
    except OSError:
        return None
    # A process may have been killed in the middle of a line.
    start, *rest = text.splitlines() or [""]
    said = _object(start) or {}
    if said and rest:
        said |= {"why": rest[0]} if (end := _object(rest[0])) is None else end
    with suppress(ValueError):
        # Fields of a later version are ignored.
        known = {each.name: said[each.name] for each in fields(ProcessRecord) if each.name in said}
        member: ProcessRecord = convert_json(ProcessRecord, known)
        if member.rank >= 0 and 0 < member.pid < 2**31:
            return member
    return None


def _object(line: str) -> dict[str, Any] | None:
    with suppress(ValueError):
        said = parse_json(line)
        return said if isinstance(said, dict) else None
    return None


def was_restarted(dead: ProcessRecord, present: Iterable[ProcessRecord]) -> bool:
    """Return whether a later start of the dead process's rank is among these process records."""
    return dead.life is not None and any(
        other.rank == dead.rank and other.life is not None and other.life > dead.life
        for other in present
    )


class PeerMonitor:
    """The monitor that detects deaths of a supervised job's processes on this machine, in order."""

    def __init__(self, folder: Path, launcher: int) -> None:
        self.folder, self.launcher = folder, launcher
        self.dead: list[ProcessRecord] = []
        """The processes that have died, with their exit reports, first death first."""
        self.alive: dict[int, ProcessRecord] = {}
        """The live processes, by the file descriptor that becomes readable at their death."""
        self.strangers: set[int] = set()
        """The pids in the folder's files that belong to processes of other programs."""
        self._poll = select.poll()
        self._launcher = watch_process(launcher)
        self._poll.register(self._launcher, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for a process or the launcher to die; record the dead processes."""
        dead = self._watch_new()
        # A death that is already known is reported at once.
        self._poll.poll(0 if dead else seconds * 1000)
        # A process that started and died meanwhile may be why others died: report them together.
        dead |= self._watch_new()
        for descriptor, _ in self._poll.poll(0):
            if descriptor != self._launcher:
                dead.add(self.alive.pop(descriptor).pid)
                self._poll.unregister(descriptor)
                os.close(descriptor)
        # A process of another machine may have the same pid, above all in containers.
        together = [
            member
            for member in process_records(self.folder)
            if member.pid in dead and member.host == platform.node()
        ]
        # Which of these died first is not known; one that lost a peer was not the first.
        self.dead += sorted(
            together, key=lambda member: (member.code == PeerLostError.exit_code, not member.why)
        )

    def _watch_new(self) -> set[int]:
        """Start watching newly recorded processes of the job; return the pids of those now dead.

        A process that has written its exit code counts as dead.
        """
        left = set()
        for member in self._unknown():
            if member.code is not None:
                left.add(member.pid)
                continue
            try:
                descriptor = watch_process(member.pid)
            except ProcessLookupError:
                left.add(member.pid)
                continue
            except OSError:  # for example, the pid of a thread
                self.strangers.add(member.pid)
                continue
            ours = is_job_process(member.pid, self.folder)
            if ours:
                self.alive[descriptor] = member
                self._poll.register(descriptor, select.POLLIN)
                continue
            os.close(descriptor)
            if ours is None and has_ended(member.pid):
                left.add(member.pid)
            elif ours is False:
                self.strangers.add(member.pid)
        return left

    def _unknown(self) -> list[ProcessRecord]:
        known = {member.pid for member in (*self.dead, *self.alive.values())} | self.strangers
        host = platform.node()
        return [
            member
            for member in process_records(self.folder)
            if member.host == host and member.pid not in known
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in (self._launcher, *self.alive):
            os.close(descriptor)


def clear_records(folder: Path) -> None:
    """Delete the records of all processes that have reported in the run folder so far.

    Raises UsageError if their folder cannot be written, and NotSavedError if the disk is full.
    """
    place = folder / FOLDER
    with writing_to(place, "remove it, or write run_dir=PATH for a folder that you can write to"):
        if place.is_symlink():  # to files that the job does not own
            place.unlink()
        place.mkdir(parents=True, exist_ok=True)
        for path in place.glob("*.jsonl"):
            with suppress(IsADirectoryError):  # no process has made this folder
                path.unlink()


def job_pids(folder: Path) -> list[int]:
    """Return the sorted pids of all processes of the run folder's job on this machine."""
    return sorted(tagged_pids((JOB_TAG, str(folder))))


def stop_job(folder: Path) -> list[int]:
    """Stop the processes of the run folder's job on this machine; return the pids found at first.

    They get SIGTERM, and SIGKILL after GRACE seconds. Raises UsageError if one does not end even
    so, since two jobs in one folder would both write there.
    """
    present = job_pids(folder)
    if left := end_tagged((JOB_TAG, str(folder)), GRACE):
        raise UsageError(
            f"run_dir={folder} has a process that SIGKILL does not end, pid "
            f"{', '.join(map(str, sorted(left)))}; it may wait for a failed drive or driver; "
            "restart this machine, or write another run_dir"
        )
    return present
