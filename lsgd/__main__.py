"""The command `lsgd COMMAND`, which runs the same module as `python -m lsgd.COMMAND`."""

import os
import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn

from lsgd import early_replies
from lsgd.errors import UsageError
from lsgd.job.command import run_alone
from lsgd.job.interrupt import exit_on_interrupt
from lsgd.job.starting import defer_gc, prepare_for_torch
from lsgd.paths import recipe_names
from lsgd.run import provenance
from lsgd.suggestions import did_you_mean, suggest_equivalent

COMMANDS = {
    "Before a run": {
        "demo": "show the paper's linear scaling rule on a laptop in two minutes",
        "doctor": "check this machine's setup and print the fix for each problem",
        "prepare": "fetch or check a dataset, and index it",
        "new": "write a recipe of your own that builds on another",
        "check": "compare a recipe with the paper, rule by rule",
        "plan": "predict how long a run takes on a number of GPUs",
        "bench": "measure the data loaders and the scaling of this machine",
        "autotune": "find the fastest settings of a recipe on this machine, compiled too",
        "audit": "compare any PyTorch training script with a paper, as it runs",
    },
    "Runs and their results": {
        "train": "train a recipe; rerun the same command to resume it",
        "launch": "start training on many processes or machines, or print how",
        "supervise": "restart a job from its checkpoint when a process dies",
        "study": "train and report all runs of a table or a figure",
        "search": "search for the best lr, width, … of a recipe",
        "evaluate": "compute the validation error of a checkpoint or of exported weights",
        "predict": "predict the classes of images, with names",
        "export": "export a network to torchvision, ONNX or the Hugging Face Hub",
        "report": "write tables, figures and a page from run folders",
        "compare": "find the first difference between two runs",
        "verify": "execute parts of anybody's run again, and compare",
        "track": "send runs to MLflow or Weights & Biases",
    },
}
"""The description of each command, by group and name.

The descriptions are not in the commands' own modules, which need torch and seconds to import.
"""

USAGE = "usage: lsgd COMMAND ... [--help] | --version | --completion bash, zsh or fish"


def format_overview() -> str:
    """Return the overview of lsgd's commands that `lsgd --help` prints, one line per command."""
    groups = [
        "\n".join([f"{group}:", *(f"  {name:<10} {about}" for name, about in commands.items())])
        for group, commands in COMMANDS.items()
    ]
    return "\n".join([USAGE, *groups])


def command_names() -> list[str]:
    """Return the names of all lsgd commands, such as train and report."""
    return [name for commands in COMMANDS.values() for name in commands]


def refuse_unknown(command: str) -> NoReturn:
    """Raise UsageError for an unknown lsgd command, suggesting the one that may be meant."""
    if command in recipe_names():
        remedy = f"it is a recipe: write lsgd train recipe={command}"
    elif "=" in command:
        remedy = f"a command comes first, as in lsgd train {command}"
    else:
        here = suggest_equivalent(command, options=["--help", "--version", "--completion"])
        remedy = here.replace("write --", "write lsgd --") or did_you_mean(command, command_names())
    raise UsageError(f"command {command!r} does not exist; {remedy}")


def run_command_module(command: str, arguments: Sequence[str]) -> None:
    """Run the module of an lsgd command as __main__ in this process, until its SystemExit."""
    # Until the command is imported, Ctrl-C has nothing to save and may exit at once.
    exit_on_interrupt()
    prepare_for_torch()
    defer_gc()
    early_replies.reply_early(command, arguments)
    # The module becomes __main__, the name under which loader processes import it.
    sys.argv[1:] = arguments
    runpy.run_module(f"lsgd.{command}", run_name="__main__", alter_sys=True)


def main() -> int:
    """Run or complete the `lsgd` command line of this process, and return its exit code."""
    if "_ARGCOMPLETE" in os.environ:  # a shell asks
        from lsgd.completion import complete

        complete({name: about for group in COMMANDS.values() for name, about in group.items()})
    return run_alone(lambda: dispatch(sys.argv[1:]))


def dispatch(arguments: Sequence[str]) -> None:
    """Run the lsgd command in the arguments, or print help, version or shell completion code.

    Running a command ends by its SystemExit.
    """
    match arguments:
        case ["-h" | "--help" | "help", name, *rest] if name in command_names():
            run_command_module(name, [*rest, "--help"])
        case ["help", name, *_]:
            refuse_unknown(name)
        case [] | ["-h" | "--help" | "help", *_]:
            print(format_overview())
        case ["--completion", shell, *_]:
            from lsgd.completion import script

            print(script(shell))
        case ["--version", *_]:
            print(provenance.version())
        case [name, *rest] if name in command_names():
            run_command_module(name, rest)
        case [name, *_]:
            refuse_unknown(name)


if __name__ == "__main__":
    raise SystemExit(main())
