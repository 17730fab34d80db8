"""Processes that other processes have started: found by a tag in their environment, and ended.

A tag is an environment variable and its value. Whatever a tagged process starts on this machine
inherits it, through launchers, daemons and forks, and shows it in /proc, whichever process group or
session it has moved to, as those of mpirun and horovodrun do.

`python -m lsgd.job.ending NAME VALUE SECONDS` waits for the end of its standard input, then ends
all that has this tag: who holds the other end of the pipe leaves nothing behind, even if killed.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

Tag = tuple[str, str]
"""Name and value of an environment variable."""
DYING = 10.0
"""Seconds after SIGKILL in which a process is gone, unless it is stuck in the kernel: in a read
from a dead network drive or in a driver."""


def tagged(tag: Tag) -> set[int]:
    """The pids of all processes on this machine that have this variable with exactly this value."""
    wanted = "=".join(tag).encode()
    pids = set()
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        # Those of other users cannot be read, and some end meanwhile.
        with suppress(OSError):
            if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                pids.add(int(entry))
    return pids


def end(tag: Tag, grace: float) -> set[int]:
    """End every process with this tag: SIGTERM first, and SIGKILL after `grace` seconds.

    Processes that are started meanwhile get the same. Returns those that not even SIGKILL has
    ended, and names them on stderr.
    """
    begin = time.monotonic()
    signalled: set[int] = set()
    empty = 0
    # Twice, since a process in the midst of an exec shows no environment.
    while empty < 2:
        left = tagged(tag)
        empty = 0 if left else empty + 1
        seconds = time.monotonic() - begin
        late = seconds > grace
        if left and seconds > grace + DYING:
            stuck = ", ".join(map(str, sorted(left)))
            print(f"lsgd: left running, as SIGKILL does not end it: pid {stuck}", file=sys.stderr)
            return left
        for pid in left if late else left - signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled |= left
        # Without any process there is nothing to wait for.
        if signalled and empty < 2:
            time.sleep(0.05)
    return set()


_parent: int | None = None
"""A descriptor of the process that has started this one, once it is noted."""


def note_parent() -> None:
    """Keep a hold of this process's parent, whose end is then seen whenever it is looked for.

    Later there may be another parent: who takes over the processes of one that was killed.
    """
    global _parent
    with suppress(OSError):  # a parent in another container, as far as the kernel tells
        _parent = os.pidfd_open(os.getppid())


def orphaned() -> bool:
    """Whether the parent that was noted has ended."""
    return _parent is not None and bool(select.select([_parent], [], [], 0)[0])


def end_with_parent(grace: float) -> None:
    """From now on, end this process once its parent has: SIGTERM, and SIGALRM after `grace` s.

    The parent is the one that was noted, and may have ended since.
    """
    if _parent is None:
        note_parent()
    if _parent is None:
        return
    parent = _parent

    def watch() -> None:
        select.select([parent], [], [])
        # By this the kernel ends the process, even where a library keeps the interpreter to itself.
        signal.setitimer(signal.ITIMER_REAL, grace)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, name="parent's end", daemon=True).start()


def main(name: str, value: str, grace: str) -> None:
    """Wait for the end of standard input, then end every process with this tag."""
    # What ends the holder of the pipe is not to end this before its work is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end((name, value), float(grace))


if __name__ == "__main__":
    main(*sys.argv[1:])
