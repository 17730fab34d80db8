"""Command lines: parsing one, and ending a command with one sentence and an exit code."""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from lsgd import paths
from lsgd.errors import (
    ExitError,
    TrainingInterrupted,
    UsageError,
    compiler_error,
    disk_full_error,
    unusable_path_error,
)
from lsgd.job.interrupt import forget_interrupt, restore_keyboard_interrupt
from lsgd.job.launcher import detect_launch
from lsgd.job.members import JOB_TAG, exit_report
from lsgd.job.output import guard_output
from lsgd.job.parent import end_with_parent
from lsgd.job.starting import enable_gc
from lsgd.suggestions import did_you_mean, suggest_equivalent

GRACE = 3.0
"""The seconds that a process has for saving after its launcher was killed."""
LONGEST = 1e9
"""Seconds, about thirty years: above it the system's own clocks overflow."""
MOST_EXAMPLES = 3
"""The examples that a help shows."""
SEE_HELP = "see --help"


class Parser(argparse.ArgumentParser):
    """An argument parser that rejects a wrong command line with one sentence, not with the usage.

    Its methods raise UsageError, so it is to be used within run_command or run_alone. It never
    completes abbreviated options.
    """

    def __init__(
        self,
        program: str | None = None,
        text: str = "",
        *,
        keys: Callable[[], Sequence[str]] = tuple,
        **settings: Any,
    ) -> None:
        """Make the argument parser of a program, with the text from which its --help is made.

        `keys` names the fields that key=value overrides of this command line may give. Of the text
        `--help` has the first paragraph and MOST_EXAMPLES examples, and `--explain` the rest.
        """
        explanation = ""
        # argparse makes the parsers of subcommands itself, and passes prog among `settings`.
        if program is not None:
            settings["prog"] = f"python -m {program}"
        if text:
            settings["description"], explanation = sections(text)
            settings["formatter_class"] = _HelpFormatter
        super().__init__(allow_abbrev=False, **settings)
        if explanation:
            self.add_argument(
                "--explain",
                action=_Print,
                nargs=0,
                text=explanation,
                help="print the full description and exit",
            )
        self.keys = keys
        self.line: list[str] = []
        """The whole command line, once it has been parsed."""

    def add_listing(
        self, option: str, argument: str, about: str, listing: Callable[[str], str]
    ) -> None:
        """Add an option that prints a list, which may be longer than a screen, and exits.

        `listing` returns the text for the argument of the option, an empty string without one. It
        raises UsageError if the list would be empty.
        """

        self.add_argument(
            option, action=_Print, nargs="?", text=listing, metavar=argument, help=about
        )

    def add_path(self, name: str, metavar: str, about: str) -> None:
        """Add an argument or an option that is a path, in which ~ is the home folder."""
        self.add_argument(name, type=paths.parse_path, metavar=metavar, help=about)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments as argparse does; raise UsageError for unknown ones."""
        return self._parse(self.parse_known_args, args, namespace)

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse intermixed arguments as argparse does; raise UsageError for unknown ones."""
        return self._parse(self.parse_known_intermixed_args, args, namespace)

    def _parse(self, parse_known: Callable[..., Any], args: Any, namespace: Any) -> Any:
        self.line = list(args if args is not None else sys.argv[1:])
        options, unknown = parse_known(self.line, namespace)
        if unknown:
            self.reject_argument(unknown[0], self.line)
        return options

    def error(self, message: str) -> NoReturn:
        """Raise UsageError for a wrong command line, with argparse's message or a clearer one."""
        if message.startswith("the following arguments are required"):
            # It may have been given as an option, which is then the mistake to report.
            for word in self.line:
                if word.startswith("--") and word.partition("=")[0] not in self.known_options:
                    self.reject_argument(word, self.line)
        if choice := re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", message):
            argument, value, choices = choice.groups()
            hint = did_you_mean(value, re.findall("[^', ]+", choices))
            raise UsageError(f"{argument}: {value} does not exist; {hint}")
        raise UsageError(f"{message}; {SEE_HELP}")

    def reject_argument(
        self, word: str, line: Sequence[str], remedy: str = SEE_HELP, *, also: Collection[str] = ()
    ) -> NoReturn:
        """Raise UsageError for an unknown argument, with a suggestion, or else the remedy.

        `also` are further options of the command.
        """
        if not word.startswith("-"):
            raise UsageError(f"{word!r} has no meaning here; {self.how(word) or remedy}")
        name, value = option_and_value(word, line)
        named = {action.dest for action in self._actions if not action.option_strings} - {"words"}
        if name.lstrip("-") in named:
            raise UsageError(
                f"option {name} does not exist; write {value or 'it'} alone, without {name}"
            )
        # A subcommand may lack an option that another one has.
        options = {*self.known_options, *also} - {name}
        how = suggest_equivalent(name, value, options=options, keys=self.keys()) or remedy
        raise UsageError(f"option {name} does not exist; {how}")

    def how(self, word: str) -> str:
        """Suggest what to write here for a bare argument of other tools; empty if unknown."""
        return suggest_equivalent(word, options=self.known_options, keys=self.keys())

    @property
    def known_options(self) -> set[str]:
        """The long names of the command line's options, those of its subcommands included."""
        own = {name for name in self._option_string_actions if name.startswith("--")}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                own |= {name for parser in action.choices.values() for name in parser.known_options}
        return own


class RecipeFolder(argparse.Action):
    """Argparse action of --recipe-dir: set $LSGD_RECIPES, which child processes inherit."""

    def __call__(self, _parser: Any, _space: Any, value: Any, _option: Any = None) -> None:
        os.environ[paths.OWN_RECIPES] = value


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The formatter of a --help text in which most options have one line each."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)


class _Print(argparse.Action):
    """The argparse action that prints a text, or one made for the option's argument, and exits."""

    def __init__(self, *arguments: Any, text: str | Callable[[str], str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.text = text

    def __call__(self, _parser: Any, _space: Any, value: Any, _option: Any = None) -> None:
        print(self.text if isinstance(self.text, str) else self.text(value or ""))
        raise SystemExit(0)


def sections(text: str) -> tuple[str, str]:
    """Split a command's documentation into the text of its --help and that of its --explain.

    The paragraph of examples is indented. The help has the first paragraph and MOST_EXAMPLES of
    them; an example is a line with "python -m" or "…" and the deeper ones below it.

    >>> print(sections("Sum.\\n\\n  python -m sum 1 2\\n\\nIt adds.")[0])
    Sum.
    <BLANKLINE>
    examples:
      python -m sum 1 2
    """
    about, *rest = text.strip("\n").split("\n\n")
    found = next((each for each in rest if re.match("examples:\n|  +(python -m|…)", each)), None)
    if found is None:
        return about, "\n\n".join(rest)
    lines = textwrap.dedent(found.removeprefix("examples:\n")).splitlines()
    begins = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    end = [*begins, *[len(lines)] * MOST_EXAMPLES][MOST_EXAMPLES]
    more = [textwrap.indent("\n".join(lines[end:]), "  ")] if lines[end:] else []
    place = rest.index(found)
    rest[place : place + 1] = more
    shown = textwrap.indent("\n".join(lines[:end]), "  ")
    return f"{about}\n\nexamples:\n{shown}", "\n\n".join(rest)


def matching(texts: Sequence[str], part: str, noun: str, skipped: Sequence[str] = ()) -> str:
    """Return, as lines, the texts that contain `part` in any case, and the reasons in `skipped`.

    Raises UsageError if no text contains it.

    >>> print(matching(["bs256 the reference", "bs8k"], "REF", "recipe"))
    bs256 the reference
    """
    found = [text for text in texts if part.lower() in text.lower()]
    if not found:
        names = [re.split("[ \\n]", text)[0] for text in texts]
        near = did_you_mean(part, names, "leave it out to see all")
        raise UsageError(f"no {noun} contains {part!r}; {near}")
    return "\n".join([*found, *(f"skipped: {why}" for why in skipped)])


def option_and_value(word: str, line: Sequence[str]) -> tuple[str, str]:
    """Split an option of a command line into its name and its apparent value, empty if none."""
    name, _, value = word.partition("=")
    following = line[line.index(word) + 1 :][:1] if word in line and not value else []
    for each in following:
        if not each.startswith(("-", "+", "~")) and "=" not in each:
            value = each
    return name, value


def integer_from(least: int) -> Callable[[str], int]:
    """Return an argparse type that accepts integers of at least `least`."""

    def read(text: str) -> int:
        # Digits alone, and fewer than the limit at which Python's int() fails.
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of {least} or more")
        return int(text)

    return read


def positive_number(text: str) -> float:
    """Parse a number from 1e-9 to 1e12, of which no product overflows; an argparse type."""
    if re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", text) and 1e-9 <= float(text) <= 1e12:
        return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number from 1e-9 to 1e12")


def number_type(is_allowed: Callable[[float], bool], what: str) -> Callable[[str], float]:
    """Return an argparse type that accepts the numbers that are allowed; `what` names them."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if is_allowed(value := float(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text} is not {what}")

    return read


seconds = number_type(
    lambda value: 1e-9 <= value <= LONGEST, "a number of seconds from 1e-9 to 1e9"
)
"""The argparse type of a time in seconds."""


def run_command(command: Callable[[], object]) -> int:
    """Run a command as one process of a job; print why it failed, and return its exit code.

    Process 0 prints an error that ends the whole job. An error that only one process has is printed
    by that process, which then exits at once, since the others do not help it to close the job's
    connections. Before the processes have joined nobody knows whether the others have it too, so
    that the first process of each machine prints it.
    """
    _begin()
    try:
        launch = detect_launch()
    except UsageError as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code
    # Where torchrun's variables were set by hand, the parent is a shell, which may end earlier.
    ours = launch.restart_count is not None
    by_hand = launch.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ and not ours
    if launch.launcher != "none" and not by_hand:
        end_with_parent(GRACE)  # without its launcher nothing would stop it
    rank = launch.rank
    try:
        with exit_report(rank) as leave:
            try:
                command()
                return leave(0, "")
            except ExitError as error:
                may_be_alone = isinstance(error, UsageError) and not error.has_joined
                is_first_elsewhere = rank > 0 and launch.local_rank == 0
                if error.is_local or (may_be_alone and is_first_elsewhere):
                    print(f"lsgd: process {rank}{launch.on_host}: {error}", file=sys.stderr)
                elif rank == 0:
                    print(f"lsgd: {error}", file=sys.stderr)
                code, alone = leave(error.exit_code, str(error)), error.is_local
            except (OSError, RuntimeError) as error:
                # Process 0 writes the run folder. Another one that lacks a path, such as one on a
                # network drive, may be started again.
                if (ends := _ending(error, writes=rank == 0)) is None:
                    raise
                if rank == 0 or launch.local_rank == 0 or not isinstance(ends, UsageError):
                    print(f"lsgd: process {rank}{launch.on_host}: {ends}", file=sys.stderr)
                code, alone = leave(ends.exit_code, str(ends)), True
            except KeyboardInterrupt as interrupt:
                forget_interrupt()
                why = str(interrupt) or "interrupted"
                # Under lsgd.launch at a terminal, or a supervisor, that process prints it.
                if rank == 0 and JOB_TAG not in os.environ:
                    print(f"\nlsgd: {why}", file=sys.stderr)
                code, alone = leave(130, why), not isinstance(interrupt, TrainingInterrupted)
    except Exception as bug:
        if launch.world_size == 1:
            raise
        sys.excepthook(type(bug), bug, bug.__traceback__)
        code, alone = 1, True
    if alone and launch.world_size > 1:
        _leave_at_once(code)
    return code


def run_alone(command: Callable[[], int | None], *, go_on: str = "") -> int:
    """Run a command that is no process of a job; print why it failed, and return its exit code.

    None counts as 0. Unlike run_command it asks no launcher for a rank, so that it also runs where
    none is recognised, and keeps no exit report, which would count a supervisor as one of its own
    processes. `go_on` says what becomes of the work after a Ctrl-C.
    """
    _begin()
    try:
        return command() or 0
    except ExitError as error:
        print(f"lsgd: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if (ends := _ending(error)) is None:
            raise
        print(f"lsgd: {ends}", file=sys.stderr)
        return ends.exit_code
    except KeyboardInterrupt:
        forget_interrupt()
        print(f"\nlsgd: interrupted{'; ' if go_on else ''}{go_on}", file=sys.stderr)
        return 130


def _ending(error: OSError | RuntimeError, *, writes: bool = True) -> ExitError | None:
    """Return what ends a command where its machine lacks something; None for any other error.

    With `writes` it may lack a path that the user has named.
    """
    if isinstance(error, OSError):
        return disk_full_error(error) or (unusable_path_error(error) if writes else None)
    return compiler_error(error)


def _leave_at_once(code: int) -> NoReturn:
    """Exit this process without Python's finalization, where libraries wait for other processes."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the disk may be full
            stream.flush()
    os._exit(code)


def _begin() -> None:
    guard_output()
    enable_gc()
    restore_keyboard_interrupt()
