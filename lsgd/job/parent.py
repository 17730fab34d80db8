"""Ending this process when its parent, for example a launcher, has ended, even by a kill."""

import os
import select
import signal
from contextlib import suppress
from threading import Thread

from lsgd.job.system import watch_process

_parent: int | None = None
"""The descriptor of the parent process, once note_parent has opened it."""


def note_parent() -> None:
    """Open a file descriptor of this process's parent, by which the parent's end is detected later.

    Afterwards the process may get another parent: the one that adopts the children of a killed
    process.
    """
    global _parent
    with suppress(OSError):  # the parent may be in another container
        _parent = watch_process(os.getppid())


def parent_has_ended() -> bool:
    """Return whether this process's original parent, noted by note_parent, has ended."""
    return _parent is not None and bool(select.select([_parent], [], [], 0)[0])


def end_with_parent(grace: float) -> None:
    """Make this process end once its parent has: SIGTERM, then SIGALRM after `grace` seconds.

    The parent is the one noted by note_parent, and may have ended since.
    """
    if _parent is None:
        note_parent()
    if _parent is None:
        return
    parent = _parent

    def watch() -> None:
        select.select([parent], [], [])
        # With SIGALRM the kernel ends the process even where a library holds the GIL.
        signal.setitimer(signal.ITIMER_REAL, grace)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, name="parent's end", daemon=True).start()
