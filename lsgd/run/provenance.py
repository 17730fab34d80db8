"""Which code a number is of: the commit of the checkout, or that which a wheel is built from."""

import os
import subprocess
from pathlib import Path

import lsgd

BUILT_FROM = "commit.txt"
"""The file of a package that says which commit it is built from."""
_PACKAGE = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """The commit of the checkout that lsgd runs from, as commit_of says it; of an installed package
    that of the checkout which it was built from, if it was one."""
    return commit_of(_PACKAGE.parent) or _built_from()


def _built_from() -> str | None:
    """What hatch_build.py has written into the package."""
    try:
        return (_PACKAGE / BUILT_FROM).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def commit_of(folder: Path) -> str | None:
    """The commit of the checkout that this folder is, with `-dirty` if it was changed.

    None if it is none, or git cannot tell.
    """
    # An installed package may lie within somebody else's checkout.
    if not (folder / ".git").exists():
        return None
    try:
        description = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=folder,
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return description.stdout.strip()


def version() -> str:
    """The version and the commit, in words."""
    return f"lsgd {lsgd.__version__}, commit {commit() or 'unknown'}"
