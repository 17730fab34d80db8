"""Which code a number is of: the commit of the checkout."""

import os
import subprocess
from pathlib import Path

import lsgd

_PACKAGE = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """The commit of the checkout that lsgd runs from, with `-dirty` if it was changed.

    None if lsgd does not run from a checkout, or git cannot tell.
    """
    # An installed package may lie within somebody else's checkout.
    if not (_PACKAGE.parent / ".git").exists():
        return None
    try:
        description = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=_PACKAGE,
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
