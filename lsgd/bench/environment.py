"""Virtual environments of other libraries, made once and kept in the user's cache.

What is compared with lsgd need not fit beside it: such a library gets an environment of its own,
and a process of that environment's Python.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from lsgd.errors import Refused
from lsgd.job.children import failure, finished

LIMIT = 1800.0
"""Seconds that a slow network may take for an installation."""


def cache() -> Path:
    """The folder in which lsgd keeps what it can make again, as setup/horovod.sh does.

    Raises Refused if the user has no home: a number in a container may have none.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lsgd"
    except RuntimeError:
        raise Refused(
            "this user has no home folder, and so no cache; set XDG_CACHE_HOME to a folder that "
            "can be written"
        ) from None


def place(name: str, requirements: Sequence[str]) -> Path:
    """The folder of the environment with these requirements, for this Python on this system."""
    made_for = [platform.python_version(), sysconfig.get_platform(), sys.base_prefix, *requirements]
    key = hashlib.sha256("\n".join(made_for).encode()).hexdigest()[:12]
    return cache() / "environments" / f"{name}-{key}"


def environment(name: str, requirements: Sequence[str], *, size: str) -> Path:
    """The Python of an environment with these pinned requirements, made if it is not there yet.

    It gets its name when all is installed, so one that is there is whole. `size` says what it takes
    on the disk. Raises Refused, in one sentence, if it cannot be made.
    """
    folder = place(name, requirements)
    python = folder / "bin" / "python"
    if folder.is_dir():
        return python
    partial = folder.with_name(f"{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A lock ends with its process, so who has it finds nobody else at work in the folder.
        with partial.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                print(
                    f"installing {' '.join(requirements)} into {folder}: {size}, once", flush=True
                )
                shutil.rmtree(partial, ignore_errors=True)
                _install(partial, requirements)
                partial.rename(folder)
    except OSError as error:
        raise Refused(
            f"the cache {folder.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME "
            "to a folder that can"
        ) from None
    return python


def _install(folder: Path, requirements: Sequence[str]) -> None:
    """Make the environment; where that fails nothing of it stays, and Refused is raised."""
    # Nothing is compiled: a library without a build for this Python says so at once.
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--only-binary", ":all:", "-q"]
    for command, remedy in (
        ([sys.executable, "-m", "venv", str(folder)], "on Debian: apt install python3-venv"),
        (
            [str(folder / "bin" / "python"), *pip, *requirements],
            "it needs a network, or an index that pip is configured for",
        ),
    ):
        code, text = finished(command, limit=LIMIT)
        if code != 0:
            shutil.rmtree(folder, ignore_errors=True)
            errors = "\n".join(line for line in text.splitlines() if line.startswith("ERROR"))
            raise Refused(
                f"{', '.join(requirements)} cannot be installed in an environment of its own: "
                f"{failure(code, errors or text, LIMIT)}; {remedy}"
            )
