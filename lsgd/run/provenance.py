"""Which code a number is of: the commit of the checkout."""

import os
import subprocess
from pathlib import Path

import lsgd

_PACKAGE = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """The commit of the checkout that lsgd runs from, as commit_of says it."""
    return commit_of(_PACKAGE.parent)


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
    """The version, and the commit if lsgd runs from a checkout."""
    name = commit()
    return f"lsgd {lsgd.__version__}" + (f", commit {name}" if name else "")
