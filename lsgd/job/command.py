"""Command lines: how one is read, and how it ends with one sentence and an exit code."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from lsgd.errors import EndsEarly, Interrupted, Refused
from lsgd.job.garbage import look_again
from lsgd.job.interrupt import raise_again
from lsgd.job.launcher import detect
from lsgd.job.members import TAG, last_words
from lsgd.job.output import need_no_reader
from lsgd.job.parent import end_with_parent

GRACE = 3.0
"""Seconds that a process has for saving once its launcher was killed."""
LONGEST = 1e9
"""Seconds, about thirty years: above it the system's own clocks overflow."""


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence what argparse would answer with the usage.

    Its methods raise Refused; so it is to be used within run_command or run_alone. Words are never
    completed from their beginning.
    """

    def __init__(
        self, program: str | None = None, about: str | None = None, **settings: Any
    ) -> None:
        # argparse makes the parsers of subcommands itself, and passes prog among `settings`.
        if program is not None:
            settings |= {"prog": f"python -m {program}", "description": about}
            settings |= {"formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Refuse the words: raise Refused with argparse's sentence."""
        raise Refused(f"{message}; --help says what there is")


def count_from(least: int) -> Callable[[str], int]:
    """The type of an option whose value is a whole number, at least this."""

    def read(text: str) -> int:
        # Of digits alone, and not of so many that Python reads no number in them.
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
        return int(text)

    return read


def seconds(text: str) -> float:
    """The type of an option whose value is a time: finite, and above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def run_command(command: Callable[[], object]) -> int:
    """Run a command line's work; returns the exit code, and says why it is not 0.

    What ends the whole job is said once, by process 0; what only one process knows, by that one,
    which then ends here and now: the others do not help it to close the job's connections.
    """
    _begin()
    try:
        launch = detect()
    except Refused as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code
    # Variables of torchrun may be set by hand, and the shell of such a process may end before it.
    ours = launch.life is not None
    by_hand = launch.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ and not ours
    if launch.launcher != "none" and not by_hand:
        end_with_parent(GRACE)  # without its launcher nobody could stop it
    rank = launch.rank
    try:
        with last_words(rank) as leave:
            try:
                command()
                return leave(0, "")
            except EndsEarly as error:
                if error.here_only:
                    print(f"lsgd: process {rank}: {error}", file=sys.stderr)
                elif rank == 0:
                    print(f"lsgd: {error}", file=sys.stderr)
                code, alone = leave(error.exit_code, str(error)), error.here_only
            except KeyboardInterrupt as interrupt:
                why = str(interrupt) or "interrupted"
                # Who has started a job by lsgd.launch at a terminal, or supervises one, says it.
                if rank == 0 and TAG not in os.environ:
                    print(f"\nlsgd: {why}", file=sys.stderr)
                code, alone = leave(130, why), not isinstance(interrupt, Interrupted)
    except Exception as bug:
        if launch.world_size == 1:
            raise
        sys.excepthook(type(bug), bug, bug.__traceback__)
        code, alone = 1, True
    if alone and launch.world_size > 1:
        _leave_at_once(code)
    return code


def run_alone(command: Callable[[], int | None], *, go_on: str = "") -> int:
    """Run the work of a command that is no process of a job; returns its exit code, None being 0.

    Unlike run_command it neither asks a launcher for a rank, so that it also runs where none is
    understood, nor keeps last words, which would count a supervisor as one of its own processes.
    `go_on` says what becomes of the work after a Ctrl-C.
    """
    _begin()
    try:
        return command() or 0
    except Refused as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\nlsgd: interrupted{'; ' if go_on else ''}{go_on}", file=sys.stderr)
        return 130


def _leave_at_once(code: int) -> NoReturn:
    """End the process without Python's own end, in which libraries wait for other processes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # of a full disk
            stream.flush()
    os._exit(code)


def _begin() -> None:
    need_no_reader()
    look_again()
    raise_again()
