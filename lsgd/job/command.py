"""Command lines: how one is read, and how it ends with one sentence and an exit code."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from lsgd.errors import EndsEarly, Interrupted, Refused
from lsgd.job.garbage import look_again
from lsgd.job.interrupt import raise_again
from lsgd.job.launcher import detect
from lsgd.job.members import TAG, last_words
from lsgd.job.output import need_no_reader
from lsgd.job.parent import end_with_parent
from lsgd.nearest import did_you_mean, written_here

GRACE = 3.0
"""Seconds that a process has for saving once its launcher was killed."""
LONGEST = 1e9
"""Seconds, about thirty years: above it the system's own clocks overflow."""
SEE_HELP = "--help says what there is"


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence what argparse would answer with the usage.

    Its methods raise Refused; so it is to be used within run_command or run_alone. Words are never
    completed from their beginning.
    """

    def __init__(
        self,
        program: str | None = None,
        about: str | None = None,
        *,
        keys: Callable[[], Sequence[str]] = tuple,
        **settings: Any,
    ) -> None:
        """`keys` names the fields that key=value words of this command line may give."""
        # argparse makes the parsers of subcommands itself, and passes prog among `settings`.
        if program is not None:
            settings |= {"prog": f"python -m {program}", "description": about}
            settings |= {"formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(allow_abbrev=False, **settings)
        self.keys = keys
        self.line: list[str] = []
        """The whole command line, once it is read."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; raises Refused for what is not known."""
        self.line = list(args if args is not None else sys.argv[1:])
        options, unknown = self.parse_known_args(self.line, namespace)
        if unknown:
            self.refuse(unknown[0], self.line)
        return options

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; raises Refused for what is not known."""
        self.line = list(args if args is not None else sys.argv[1:])
        options, unknown = self.parse_known_intermixed_args(self.line, namespace)
        if unknown:
            self.refuse(unknown[0], self.line)
        return options

    def error(self, message: str) -> NoReturn:
        """Refuse the words: raise Refused with argparse's sentence."""
        if message.startswith("the following arguments are required"):
            # Perhaps given, but by an option: which is then what is wrong.
            for word in self.line:
                if word.startswith("--") and word.partition("=")[0] not in self.known:
                    self.refuse(word, self.line)
        if choice := re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", message):
            argument, value, choices = choice.groups()
            hint = did_you_mean(value, re.findall("[^', ]+", choices))
            raise Refused(f"{argument}: {value} does not exist; {hint}")
        raise Refused(f"{message}; {SEE_HELP}")

    def refuse(
        self,
        word: str,
        line: Sequence[str],
        remedy: str = SEE_HELP,
        *,
        also: Collection[str] = (),
    ) -> NoReturn:
        """Refuse a word of the line: raise Refused with what is written for it here, else with the
        names that are near, else with the remedy. The command has `also` these options."""
        if not word.startswith("-"):
            raise Refused(f"{word!r} has no meaning here; {self.how(word) or remedy}")
        name, value = option_and_value(word, line)
        named = {action.dest for action in self._actions if not action.option_strings} - {"words"}
        if name.lstrip("-") in named:
            raise Refused(f"there is no option {name}; write {value or 'it'} alone, without {name}")
        options = {*self.known, *also}
        how = written_here(name, value, options=options, keys=self.keys()) or remedy
        raise Refused(f"there is no option {name}; {how}")

    def how(self, word: str) -> str:
        """What is written here for a bare word of other tools; empty if it is none."""
        return written_here(word, options=self.known, keys=self.keys())

    @property
    def known(self) -> set[str]:
        """The options that the command has, by their long names."""
        own = {name for name in self._option_string_actions if name.startswith("--")}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                own |= {name for parser in action.choices.values() for name in parser.known}
        return own


def option_and_value(word: str, line: Sequence[str]) -> tuple[str, str]:
    """The name of an option of this line, and the value that it seems to have, if any."""
    name, _, value = word.partition("=")
    following = line[line.index(word) + 1 :][:1] if word in line and not value else []
    for each in following:
        if not each.startswith(("-", "+", "~")) and "=" not in each:
            value = each
    return name, value


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
