"""What a command does before it imports torch: it says so, and settles how threads wait."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

from lsgd.job.launcher import detect
from lsgd.job.threads import count_wanted_cores, limit_spinning

QUICK = {"-h", "--help", "--version", "--cfg"}
"""Words that are answered once everything is imported, and whose answer stands alone."""


class _BeforeTorch:
    """Is asked by Python for every module, finds none, and acts when torch is asked for."""

    def __init__(self) -> None:
        self.wanted_before = count_wanted_cores()
        # For a person: programs read what a command says on stderr, and logs have its first line.
        seen = sys.stderr is not None and sys.stderr.isatty()
        self.announces = seen and detect().rank == 0 and not QUICK.intersection(sys.orig_argv)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None. Of torch, say first that it is being loaded: its libraries take seconds, and
        from a cold disk or a network drive a minute."""
        if name == "torch":
            sys.meta_path.remove(self)
            # What wants a core at one moment alone is gone again.
            limit_spinning(min(self.wanted_before, count_wanted_cores()))
            if self.announces:
                with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or closed
                    print("lsgd: loading torch", file=sys.stderr, flush=True)
        return None


def prepare_for_torch() -> None:
    """From now on say at a terminal that torch is being loaded, on process 0 of a job, and let its
    idle threads sleep soon."""
    with suppress(Exception):  # what is wrong with a launcher is said later, by who needs it
        detect()
        sys.meta_path.insert(0, _BeforeTorch())
