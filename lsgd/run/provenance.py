"""The version of the code that a result comes from: the commit of a checkout or of a wheel."""

import os
import subprocess
from pathlib import Path

import lsgd

BUILT_FROM = "commit.txt"
"""The file in an installed package that records the commit it was built from."""
_PACKAGE = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """Return the git commit that lsgd runs from or was built from, or None if unknown."""
    if here := commit_of(_PACKAGE.parent):
        return here
    try:
        return (_PACKAGE / BUILT_FROM).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def commit_of(folder: Path) -> str | None:
    """Return the git commit of this checkout, with `-dirty` if files were changed.

    Returns None if the folder is no checkout, or git fails.
    """
    # Without this check, git would find somebody else's checkout around an installed package.
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
    """Return the version and the commit of lsgd, as text."""
    return f"lsgd {lsgd.__version__}, commit {commit() or 'unknown'}"
