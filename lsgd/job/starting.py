"""The line that a command prints before it imports torch."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

QUICK = {"-h", "--help", "--version", "--cfg"}
"""Words that are answered once everything is imported, and whose answer stands alone."""


class _TorchAnnouncer:
    """Says that torch is being loaded, when it is: its libraries take seconds, and from a cold disk
    or a network drive a minute. It finds no module itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None, as what looks for modules here; print a line if torch is asked for."""
        if name == "torch":
            sys.meta_path.remove(self)
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or it is closed
                print("lsgd: loading torch", file=sys.stderr, flush=True)
        return None


def announce_torch() -> None:
    """From now on say on stderr that torch is being loaded, on process 0 of a job."""
    from lsgd.job.launcher import detect

    with suppress(Exception):  # what is wrong with a launcher is said later, by who needs it
        if detect().rank == 0 and not QUICK.intersection(sys.argv, sys.orig_argv):
            sys.meta_path.insert(0, _TorchAnnouncer())
