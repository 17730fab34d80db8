"""Virtual environments of other libraries, created once and kept in the user's cache.

A library that is compared with lsgd may need other versions of packages. It gets an environment of
its own, and runs in a process of that environment's Python.
"""

import hashlib
import platform
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.files import locked
from lsgd.job.children import describe_failure, run_with_limit
from lsgd.paths import cache_dir

LIMIT = 1800.0
"""The time limit of an installation in seconds, for slow networks."""


def environment_folder(name: str, requirements: Sequence[str]) -> Path:
    """Return the folder of the environment with these requirements, for this Python and system."""
    made_for = [platform.python_version(), sysconfig.get_platform(), sys.base_prefix, *requirements]
    key = hashlib.sha256("\n".join(made_for).encode()).hexdigest()[:12]
    return cache_dir() / "environments" / f"{name}-{key}"


def ensure_environment(name: str, requirements: Sequence[str], *, size: str) -> Path:
    """Return the Python of an environment with these pinned requirements; create it if missing.

    The folder gets its final name when all is installed, so an existing one is complete. `size` is
    the disk space it takes, for the message. Raises UsageError if it cannot be created.
    """
    folder = environment_folder(name, requirements)
    python = folder / "bin" / "python"
    if folder.is_dir():
        return python
    partial = folder.with_name(f"{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A lock ends with its process, so its holder is the only one at work in the folder.
        with locked(partial.with_suffix(".lock")):
            if not folder.is_dir():
                print(
                    f"installing {' '.join(requirements)} into {folder}: {size}, once", flush=True
                )
                shutil.rmtree(partial, ignore_errors=True)
                _install(partial, requirements)
                partial.rename(folder)
    except OSError as error:
        raise UsageError(
            f"the cache {folder.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME "
            "to a folder that can"
        ) from None
    return python


def _install(folder: Path, requirements: Sequence[str]) -> None:
    """Create the environment; on failure remove the folder and raise UsageError."""
    # Nothing is compiled: a library without a wheel for this Python fails at once.
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--only-binary", ":all:", "-q"]
    for command, remedy in (
        ([sys.executable, "-m", "venv", str(folder)], "on Debian: apt install python3-venv"),
        (
            ["env", "PIP_USER=0", str(folder / "bin" / "python"), *pip, *requirements],
            "it needs a network, or an index that pip is configured for",
        ),
    ):
        code, text = run_with_limit(command, limit=LIMIT)
        if code != 0:
            shutil.rmtree(folder, ignore_errors=True)
            errors = "\n".join(line for line in text.splitlines() if line.startswith("ERROR"))
            raise UsageError(
                f"{', '.join(requirements)} cannot be installed in an environment of its own: "
                f"{describe_failure(code, errors or text, LIMIT)}; {remedy}"
            )
