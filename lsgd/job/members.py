"""The processes of a supervised job: who they are, how each of them ended, how all are stopped.

`lsgd.supervise` gives its job the environment variable LSGD_SUPERVISED, the run folder, as a tag
(`lsgd.job.ending`): so `stop` also finds what a dead launcher has left behind. A process of lsgd
that has it keeps a file in the run folder's `supervised/`: its rank, host and pid when it starts,
and how it ended, unless it is killed.

`python -m lsgd.job.members FOLDER` waits for the end of its standard input, then stops the job of
that folder: a supervisor holds the other end, so that a job does not outlive it.
"""

import faulthandler
import json
import os
import platform
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lsgd.errors import PeerLost, Refused
from lsgd.job.ending import end, tagged
from lsgd.job.launcher import LIFE

TAG = "LSGD_SUPERVISED"
FOLDER = "supervised"
GRACE = 3.0
"""Seconds that a process gets to leave by itself before it is killed."""


@dataclass(frozen=True)
class Member:
    """A process of the job, as its own file has it."""

    rank: int
    host: str
    pid: int
    code: int | None = None
    """Its exit code; None while it runs, or if it was killed before it wrote one."""
    why: str = ""
    """Its message, or the first line of the traceback that a crash has left."""
    life: int | None = None
    """How often its launcher had started it before; None if that starts no single process again."""

    @property
    def may_return(self) -> bool:
        """Whether its launcher starts it again, while the others go on, once it has crashed or was
        killed: every process but 0, which holds what the others meet by."""
        return self.life is not None and self.rank > 0 and self.code in (None, 1)


@contextmanager
def last_words(rank: int) -> Iterator[Callable[[int, str], int]]:
    """Keep this process's file while it works, if it is supervised.

    The yielded function takes the exit code and the reason, and returns the code. An exception
    counts as exit code 1, and a crash such as a segmentation fault writes its own traceback.
    """
    if TAG not in os.environ:
        yield lambda code, why: code
        return
    path = Path(os.environ[TAG], FOLDER, f"{rank}-{platform.node()}-{os.getpid()}.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:

        def say(**what: object) -> None:
            print(json.dumps(what), file=file, flush=True)

        def leave(code: int, why: str) -> int:
            say(code=code, why=why)
            return code

        life = {"life": int(os.environ[LIFE])} if LIFE in os.environ else {}
        say(rank=rank, host=platform.node(), pid=os.getpid(), **life)
        faulthandler.enable(file)
        try:
            yield leave
        except Exception as error:
            say(code=1, why=f"{type(error).__name__}: {error}")
            raise
        finally:
            faulthandler.disable()


def members(folder: Path) -> list[Member]:
    """The processes that have reported in the run folder since it was last cleared, by rank."""
    reported = []
    for path in (folder / FOLDER).glob("*.jsonl"):
        start, *rest = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        # A process may be about to write, or may have been killed in the middle of a line.
        with suppress(json.JSONDecodeError):
            fields = json.loads(start)
            if rest:
                try:
                    fields |= json.loads(rest[0])
                except json.JSONDecodeError:
                    fields |= {"why": rest[0]}
            reported.append(Member(**fields))
    return sorted(reported, key=lambda member: (member.rank, member.host, member.pid))


def has_returned(dead: Member, present: Iterable[Member]) -> bool:
    """Whether one of these processes is a later life of the dead one."""
    return dead.life is not None and any(
        other.rank == dead.rank and other.life is not None and other.life > dead.life
        for other in present
    )


class Watch:
    """Sees the processes of the job on this machine die, at once and in their order."""

    def __init__(self, folder: Path, launcher: int) -> None:
        self.folder, self.launcher = folder, launcher
        self.dead: list[Member] = []
        """Those that have died, with their last words, first death first."""
        self.alive: dict[int, Member] = {}
        """The others, by the file descriptor that becomes readable when they die."""
        self._poll = select.poll()
        self._launcher = os.pidfd_open(launcher)
        self._poll.register(self._launcher, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait until a process or the launcher dies, or so long; new processes are watched too."""
        dead = self._watch_new()
        # A death that is known already is reported at once.
        self._poll.poll(0 if dead else seconds * 1000)
        # Who has started and died meanwhile may be why the others died: they are seen together.
        dead |= self._watch_new()
        for descriptor, _ in self._poll.poll(0):
            if descriptor != self._launcher:
                dead.add(self.alive.pop(descriptor).pid)
                self._poll.unregister(descriptor)
                os.close(descriptor)
        together = [member for member in members(self.folder) if member.pid in dead]
        # Which of these died first is not known; one that lost a peer was not the first.
        self.dead += sorted(
            together, key=lambda member: (member.code == PeerLost.exit_code, not member.why)
        )

    def _watch_new(self) -> set[int]:
        """Watch those that have reported since; returns the pids of those that have left already.

        One that has written its exit code counts as such.
        """
        left = set()
        for member in self._unknown():
            left.add(member.pid)
            if member.code is None:
                with suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(member.pid)
                    self.alive[descriptor] = member
                    self._poll.register(descriptor, select.POLLIN)
                    left.remove(member.pid)
        return left

    def _unknown(self) -> list[Member]:
        known = {member.pid for member in (*self.dead, *self.alive.values())}
        host = platform.node()
        return [
            member
            for member in members(self.folder)
            if member.host == host and member.pid not in known
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in (self._launcher, *self.alive):
            os.close(descriptor)


def clear(folder: Path) -> None:
    """Forget the processes that have reported so far."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    for path in (folder / FOLDER).glob("*.jsonl"):
        path.unlink()


def running(folder: Path) -> list[int]:
    """The pids of all processes on this machine that belong to the folder's job, in order."""
    return sorted(tagged((TAG, str(folder))))


def stop(folder: Path) -> list[int]:
    """End all processes of the folder's job on this machine; return the pids of those there were.

    They get SIGTERM first, and SIGKILL after GRACE seconds. Raises Refused if one does not end even
    so: two jobs in one folder would both write there.
    """
    present = running(folder)
    if left := end((TAG, str(folder)), GRACE):
        raise Refused(
            f"run_dir={folder} has a process that SIGKILL does not end, pid "
            f"{', '.join(map(str, sorted(left)))}, as one that waits for a dead drive or driver; "
            "restart this machine, or write another run_dir"
        )
    return present


def main(folder: str) -> None:
    """Wait for the end of standard input, then stop the job."""
    # What ends the supervisor is not to end this before its work is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    with suppress(Refused):  # what is left is named already
        stop(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
