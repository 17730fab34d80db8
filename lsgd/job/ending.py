"""Finding processes by a tag in their environment, and ending them with all their descendants.

A tag is an environment variable and its value. Whatever a tagged process starts on this machine
inherits it, through launchers, daemons and forks, and the system shows it, whichever process group
or session the process has moved to, as those of mpirun and horovodrun do.

`python -m lsgd.job.ending NAME VALUE SECONDS` waits for the end of its standard input, then ends
all processes with this tag: the holder of the other end of the pipe leaves none running, even if
killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from lsgd.job.system import Tag, tagged_pids

GRACE = 3.0
"""The seconds between SIGTERM and SIGKILL."""
DYING = 10.0
"""The seconds after SIGKILL in which a process ends, unless a drive or driver blocks it."""


def end_tagged(tag: Tag, grace: float) -> set[int]:
    """End all processes with an environment variable: SIGTERM, then SIGKILL after `grace` seconds.

    Processes that are started meanwhile are ended too. Returns the pids that not even SIGKILL has
    ended, and prints them on stderr.
    """
    begin = time.monotonic()
    signalled: set[int] = set()
    empty = 0
    # Twice, since a process in the middle of an exec shows no environment.
    while empty < 2:
        left = tagged_pids(tag)
        empty = 0 if left else empty + 1
        seconds = time.monotonic() - begin
        late = seconds > grace
        if left and seconds > grace + DYING:
            stuck = ", ".join(map(str, sorted(left)))
            print(f"lsgd: still running, as SIGKILL does not end it: pid {stuck}", file=sys.stderr)
            return left
        for pid in left if late else left - signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled |= left
        # Without any process no wait is needed.
        if signalled and empty < 2:
            time.sleep(0.05)
    return set()


@contextmanager
def cleanup_process(tag: Tag, *, keep: Sequence[int] = ()) -> Iterator[None]:
    """Run a helper that ends all processes with this tag after this context.

    It does so even if this process is killed. It inherits the file descriptors in `keep`, such as
    that of a lock.
    """
    # Python would warn where a package has already imported the module that it is about to run.
    command = [sys.executable, "-W", "ignore", "-m", "lsgd.job.ending", *tag, str(GRACE)]
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=keep, start_new_session=True)
    with helper:  # on exit it closes the pipe, as the end of this process does, and waits
        yield


def main(name: str, value: str, grace: str) -> None:
    """Wait for the end of standard input, then end all processes with this environment variable."""
    # A signal that ends the holder of the pipe must not end this process before its work is done.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_tagged((name, value), float(grace))


if __name__ == "__main__":
    main(*sys.argv[1:])
