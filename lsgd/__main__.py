"""All commands of lsgd under one name: `lsgd COMMAND` does what `python -m lsgd.COMMAND` does."""

import difflib
import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn

from lsgd.errors import Refused
from lsgd.job.command import run_alone
from lsgd.job.garbage import put_off
from lsgd.job.interrupt import leave_at_once
from lsgd.job.starting import announce_torch, wait_passively
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


def refuse(command: str) -> NoReturn:
    """Raise Refused for a command that does not exist, with the names nearest to it."""
    names = [name for commands in COMMANDS.values() for name in commands]
    nearest = difflib.get_close_matches(command, names)
    remedy = f"write {' or '.join(nearest)}" if nearest else "lsgd --help lists those there are"
    raise Refused(f"there is no command {command!r}; {remedy}")


def hand_over(command: str, words: Sequence[str]) -> None:
    """Run the command's module in this process as `python -m` does; ends by its SystemExit."""
    # Only the command itself, once it is imported, has more to do at Ctrl-C than to leave.
    leave_at_once()
    wait_passively()
    announce_torch()
    put_off()
    # The module becomes __main__, by whose name the processes of a loader find it.
    sys.argv[1:] = words
    runpy.run_module(f"lsgd.{command}", run_name="__main__", alter_sys=True)


def main() -> int:
    """The command line of this process; returns the exit code unless a command raises its own."""
    return run_alone(lambda: command(sys.argv[1:]))


def command(words: Sequence[str]) -> None:
    """Do what the words ask for; ends by SystemExit if they name a command, which runs as it is."""
    match words:
        case [] | ["-h" | "--help", *_]:
            print(listing())
        case ["--version", *_]:
            print(provenance.version())
        case [name, *rest] if any(name in commands for commands in COMMANDS.values()):
            hand_over(name, rest)
        case [name, *_]:
            refuse(name)


if __name__ == "__main__":
    raise SystemExit(main())
