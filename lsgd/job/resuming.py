"""The command line by which a person has started this process, and the one that resumes a run."""

import re
import shlex
import sys
from pathlib import Path

from lsgd.job.launcher import detect


def own_command() -> str | None:
    """Return which command of lsgd this process is, such as train; None in another program."""
    words = _typed()
    return words[0] if words else None


def resume_command(folder: Path) -> str:
    """Return how to resume the run in this folder, as the end of a sentence: the command of this
    process as it was typed, or what to do where a launcher or another program has started it."""
    words = _typed()
    if detect().launcher != "none" or own_command() is None:
        return f"rerun it with run_dir={folder} to resume"
    if own_command() != "train":
        return "rerun the same command to resume"
    kept = [word for word in words[1:] if not word.startswith("run_dir=")]
    # Hydra reads more into a value with a blank or a comma, unless it is quoted.
    value = folder if re.fullmatch(r"[\w./-]+", str(folder)) else f"'{folder}'"
    return f"resume with: {shlex.join([*_program(), *kept, f'run_dir={value}'])}"


def _program() -> list[str]:
    """Return the words before those of the command, as they were typed."""
    if "-m" not in sys.orig_argv:
        return ["lsgd", "train"]
    module = sys.orig_argv.index("-m") + 1
    name = sys.orig_argv[module]
    return [sys.orig_argv[0], "-m", name, *(["train"] if name == "lsgd" else [])]


def _typed() -> list[str]:
    """Return the command's name and its words; an empty list in another program."""
    typed = sys.orig_argv
    # Behind a script it is a word of that script's.
    of_python = typed[: typed.index("-m")] if "-m" in typed else typed
    if "-m" in typed and not any(word.endswith(".py") for word in of_python):
        name, *words = typed[typed.index("-m") + 1 :]
        package, _, command = name.partition(".")
        if package != "lsgd":
            return []
        return [command, *words] if command else words
    # The script that pip has made of the same name.
    return typed[2:] if len(typed) > 2 and Path(typed[1]).name == "lsgd" else []
