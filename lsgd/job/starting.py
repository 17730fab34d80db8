"""The preparation for importing torch: a message at a terminal, threads and garbage collection."""

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

from lsgd.job.launcher import cores, detect_launch
from lsgd.job.threads import count_wanted_cores, limit_spinning

QUICK = {"-h", "--help", "--explain", "--version", "--cfg", "--recipes", "--fields", "--studies"}
"""The arguments that are answered right after the imports, with no other output."""


class _BeforeTorch:
    """An import hook that finds no module, but prepares this process when torch is imported."""

    def __init__(self) -> None:
        self.wanted_before = count_wanted_cores()
        # Only at a terminal: programs parse stderr, and a log begins with the command's own output.
        seen = sys.stderr is not None and sys.stderr.isatty()
        self.announces = (
            seen and detect_launch().rank == 0 and not QUICK.intersection(sys.orig_argv)
        )

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None; for torch, limit the spinning of its threads and print that it is loading.

        Its libraries take seconds to load, and from a cold disk or a network drive a minute.
        """
        if name == "torch":
            sys.meta_path.remove(self)
            # The minimum of two counts, since threads that were runnable only once do not matter.
            limit_spinning(min(self.wanted_before, count_wanted_cores()))
            if self.announces:
                with suppress(OSError, ValueError, AttributeError):  # stderr is closed
                    print("lsgd: loading torch", file=sys.stderr, flush=True)
        return None


def prepare_for_torch() -> None:
    """Install the import hook that announces torch and limits the spinning of its idle threads."""
    with suppress(Exception):  # a problem with the launcher is reported later, where it matters
        cores(detect_launch())
        sys.meta_path.insert(0, _BeforeTorch())


def defer_gc() -> None:
    """Disable Python's garbage collection until enable_gc is called.

    An import of torch makes a million objects that stay, and Python would scan them again and again
    for reference cycles: a sixth of the import time.
    """
    gc.disable()


def enable_gc() -> None:
    """Enable garbage collection again after defer_gc, and exempt all present objects from it."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
