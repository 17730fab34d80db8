"""The end of the process that has started this one, a launcher for example, which may be killed."""

import os
import select
import signal
from contextlib import suppress
from threading import Thread

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
