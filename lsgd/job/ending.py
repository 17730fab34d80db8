"""Processes that other processes have started: found by a tag in their environment, and ended.

A tag is an environment variable and its value. Whatever a tagged process starts on this machine
inherits it, through launchers, daemons and forks, and shows it in /proc, whichever process group or
session it has moved to, as those of mpirun and horovodrun do.

`python -m lsgd.job.ending NAME VALUE SECONDS` waits for the end of its standard input, then ends
all that has this tag: who holds the other end of the pipe leaves nothing behind, even if killed.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

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


def main(name: str, value: str, grace: str) -> None:
    """Wait for the end of standard input, then end every process with this tag."""
    # What ends the holder of the pipe is not to end this before its work is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end((name, value), float(grace))


if __name__ == "__main__":
    main(*sys.argv[1:])
