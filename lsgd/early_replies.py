"""Early replies to a command line that do not need the command's own slow imports."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec

from lsgd.errors import UsageError

REQUIRED: dict[str, tuple[str, ...]] = {"lsgd": (), "doctor": (), "launch": ("yaml",)}
"""The packages without which a command cannot start, if these are others than torch and Hydra."""


def reply_early(command: str, arguments: Sequence[str]) -> None:
    """Answer `--version` and invalid command lines before the slow imports of an lsgd command.

    Refused are a removed current folder, a Python that lacks lsgd's requirements and, for commands
    whose arguments are only a recipe's overrides, every error in these. Ends by SystemExit after a
    reply; else returns.
    """
    # Imported where they are used, since most command lines need neither module.
    if arguments[:1] == ["--version"]:
        from lsgd.run import provenance

        print(provenance.version())
        raise SystemExit(0)
    try:
        os.getcwd()
    except FileNotFoundError:  # torch cannot be imported in such a folder
        print("lsgd: the current folder was removed; change to another one", file=sys.stderr)
        raise SystemExit(UsageError.exit_code) from None
    if "." not in command:  # others are started by a command, which has answered already
        _check_packages(REQUIRED.get(command, ("torch", "hydra")))
    asks = {"-h", "--help", "--explain"} & {*arguments}
    if command not in ("train", "check") or asks or _launched():
        return
    from lsgd.recipe_parser import check_command_line

    try:
        check_command_line(arguments)
    except UsageError as refusal:
        print(f"lsgd: {refusal}", file=sys.stderr)
        raise SystemExit(refusal.exit_code) from None


def _check_packages(packages: Sequence[str]) -> None:
    """Exit with a message if this Python lacks one of these packages, as if .venv is not active."""
    # PathFinder first: it leaves out the hook that announces the import of torch.
    missing = [
        package
        for package in packages
        if PathFinder.find_spec(package) is None and find_spec(package) is None
    ]
    if not missing:
        return
    from lsgd.installation import checkout_folder, install_command
    from lsgd.paths import display_path

    root = checkout_folder()
    if root is None:
        remedy = f"run '{install_command()}'"
    elif (root / ".venv/bin/activate").is_file() and sys.prefix != str(root / ".venv"):
        remedy = f"run '. {display_path(root / '.venv/bin/activate')}'"
    else:  # it installs them into .venv, also after an interruption
        remedy = "run 'make train' in the checkout"
    print(f"lsgd: {sys.executable} lacks {' and '.join(missing)}; {remedy} first", file=sys.stderr)
    raise SystemExit(UsageError.exit_code)


def _launched() -> bool:
    """Return whether a launcher, such as torchrun, started this process.

    Then only rank 0 may print a refusal.
    """
    from lsgd.job.launcher import detect_launch

    try:
        return detect_launch().launcher != "none"
    except UsageError:
        return True
