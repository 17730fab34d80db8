"""How a command line is read and ends: with one sentence and an exit code."""

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

from lsgd.errors import Diverged, InputFailed, NotSaved, PeerLost, Preempted, Refused
from lsgd.job.launcher import detect
from lsgd.job.members import last_words


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence what argparse would answer with the usage.

    Its methods raise Refused; so it is to be used within run_command. Words are never guessed from
    their beginning.
    """

    def __init__(self, program: str, about: str, **settings: Any) -> None:
        super().__init__(
            prog=f"python -m {program}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **settings,
        )

    def error(self, message: str) -> NoReturn:
        """Raise Refused."""
        raise Refused(f"{message}; --help says what there is")


def run_command(command: Callable[[], object], *, member: bool = True) -> int:
    """Run a command line's work; returns the exit code, and says why it is not 0.

    What ends the whole job is said once, by process 0; what only one process knows, by that one.
    With member=False the command is none of a job's processes, such as one that starts jobs: it
    has no number, and a supervisor neither counts it nor asks it to save.
    """
    try:
        rank = detect().rank if member else 0
    except Refused as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code
    with last_words(rank) if member else nullcontext(_say_nothing) as leave:
        try:
            command()
        except (Refused, Diverged, InputFailed, PeerLost, NotSaved, Preempted) as error:
            if isinstance(error, InputFailed | PeerLost) or getattr(error, "here_only", False):
                print(f"lsgd: process {rank}: {error}", file=sys.stderr)
            elif rank == 0:
                print(f"lsgd: {error}", file=sys.stderr)
            return leave(error.exit_code, str(error))
        except KeyboardInterrupt:
            if rank == 0:
                print(
                    "\nlsgd: interrupted; a run with run_dir=… goes on by the same words",
                    file=sys.stderr,
                )
            return leave(130, "interrupted")
        return leave(0, "")


def _say_nothing(code: int, why: str) -> int:
    return code
