"""All commands of lsgd under one name: `lsgd COMMAND` does what `python -m lsgd.COMMAND` does."""

import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn

from lsgd import at_once
from lsgd.errors import Refused
from lsgd.job.command import run_alone
from lsgd.job.garbage import put_off
from lsgd.job.interrupt import leave_at_once
from lsgd.job.starting import prepare_for_torch
from lsgd.nearest import did_you_mean, written_here
from lsgd.paths import recipe_names
from lsgd.run import provenance

COMMANDS = {
    "First steps": {
        "demo": "the paper's scaling rule, shown on a laptop in two minutes",
        "doctor": "is this machine fit for a run, and if not, what to type",
        "prepare": "fetch or check a dataset, and index it",
    },
    "One run": {
        "train": "train a recipe; the same words again resume it",
        "launch": "start a training on many processes or machines, or print how",
        "supervise": "start a job again from its checkpoint when a process dies",
        "evaluate": "the validation error of a checkpoint or of plain weights",
        "export": "a trained network for torchvision, ONNX or the Hugging Face Hub",
    },
    "Before a run": {
        "check": "compare a recipe with the paper, rule by rule",
        "plan": "how long a run takes on a number of GPUs, computed beforehand",
        "bench": "how fast the parts of a run are on this machine",
    },
    "Many runs": {
        "study": "train all the runs of a table or a figure, and report them",
        "search": "find the best lr, width, … of a recipe, by trials",
        "report": "tables, figures and a page from run folders",
        "compare": "where two runs part: in their recipes and in their metrics",
        "track": "send runs to MLflow or to Weights & Biases",
    },
}
"""Each command of a group with what it is for. The words stand here and not in the commands, since
importing these takes seconds and needs torch."""

USAGE = "usage: lsgd COMMAND ...   (or python -m lsgd COMMAND ...)"


def listing() -> str:
    """All commands in their groups, one line each, as --help prints them."""
    groups = [
        "\n".join([f"{group}:", *(f"  {name:<10} {about}" for name, about in commands.items())])
        for group, commands in COMMANDS.items()
    ]
    ending = "lsgd COMMAND --help says more; lsgd --version prints version and commit."
    return "\n\n".join([USAGE, *groups, ending])


def listed() -> list[str]:
    """The names of all commands."""
    return [name for commands in COMMANDS.values() for name in commands]


def refuse(command: str) -> NoReturn:
    """Raise Refused for a command that does not exist, with what does it, or the names nearest."""
    if command in recipe_names():
        remedy = f"it is a recipe: write lsgd train +recipe={command}"
    elif "=" in command:
        remedy = f"a command comes first, as in lsgd train {command}"
    else:
        here = written_here(command, options=["--help", "--version"])
        remedy = here.replace("write --", "write lsgd --") or did_you_mean(command, listed())
    raise Refused(f"there is no command {command!r}; {remedy}")


def hand_over(command: str, words: Sequence[str]) -> None:
    """Run the command's module in this process as `python -m` does; ends by its SystemExit."""
    # Only the command itself, once it is imported, has more to do at Ctrl-C than to leave.
    leave_at_once()
    prepare_for_torch()
    put_off()
    at_once.answer(command, words)
    # The module becomes __main__, by whose name the processes of a loader find it.
    sys.argv[1:] = words
    runpy.run_module(f"lsgd.{command}", run_name="__main__", alter_sys=True)


def main() -> int:
    """The command line of this process; returns the exit code unless a command raises its own."""
    return run_alone(lambda: command(sys.argv[1:]))


def command(words: Sequence[str]) -> None:
    """Do what the words ask for; ends by SystemExit if they name a command, which runs as it is."""
    match words:
        case ["-h" | "--help" | "help", name, *rest] if name in listed():
            hand_over(name, [*rest, "--help"])
        case ["help", name, *_]:
            refuse(name)
        case [] | ["-h" | "--help" | "help", *_]:
            print(listing())
        case ["--version", *_]:
            print(provenance.version())
        case [name, *rest] if name in listed():
            hand_over(name, rest)
        case [name, *_]:
            refuse(name)


if __name__ == "__main__":
    raise SystemExit(main())
