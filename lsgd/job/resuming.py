"""The command line that started this process, and the one that resumes a run."""

import shlex
import sys
from pathlib import Path
from shutil import which

from lsgd.job.launcher import detect_launch
from lsgd.override_syntax import format_override, key_and_value


def own_command() -> str | None:
    """Return which command of lsgd this process runs, such as train; None in another program."""
    arguments = _typed()
    return arguments[0] if arguments else None


def resume_command(folder: Path) -> str:
    """Return the instruction that resumes the run in this folder, as the end of a sentence.

    It is the command of this process as it was typed, or what to do where a launcher or another
    program has started it.
    """
    arguments = _typed()
    if detect_launch().launcher != "none" or own_command() is None:
        return f"rerun it with run_dir={folder} to resume"
    if own_command() != "train":
        return "rerun the same command to resume"
    kept = [word for word in arguments[1:] if key_and_value(word)[0] != "run_dir"]
    return f"resume with: {shlex.join([*_program(), *kept, format_override('run_dir', folder)])}"


def _program() -> list[str]:
    """Return the program part of this process's command line as typed, such as lsgd train."""
    if "-m" not in sys.orig_argv:
        script = sys.orig_argv[1]  # a shell that finds it in PATH gives its whole path
        in_path = which("lsgd")
        is_found = in_path is not None and Path(in_path).resolve() == Path(script).resolve()
        return ["lsgd" if is_found else script, "train"]
    module = sys.orig_argv.index("-m") + 1
    name = sys.orig_argv[module]
    return [sys.orig_argv[0], "-m", name, *(["train"] if name == "lsgd" else [])]


def _typed() -> list[str]:
    """Return the command's name and arguments as typed; an empty list in another program."""
    typed = sys.orig_argv
    # After a script, -m is an argument of that script.
    of_python = typed[: typed.index("-m")] if "-m" in typed else typed
    if "-m" in typed and not any(word.endswith(".py") for word in of_python):
        name, *arguments = typed[typed.index("-m") + 1 :]
        package, _, command = name.partition(".")
        if package != "lsgd":
            return []
        return [command, *arguments] if command else arguments
    # The console script `lsgd` that pip has installed.
    return typed[2:] if len(typed) > 2 and Path(typed[1]).name == "lsgd" else []
