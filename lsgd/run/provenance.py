"""The versions of the code that a result comes from: the commit, the libraries and the driver."""

import os
import platform
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import lsgd
from lsgd.job.system import nvidia_driver

BUILT_FROM = "commit.txt"
"""The file in an installed package that records the commit it was built from."""
LIBRARIES = ("torch", "torchvision", "pillow", "numpy", "hydra-core", "horovod")
DALI = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
"""The packages of DALI, which are named for releases of CUDA."""
_PACKAGE = Path(__file__).resolve().parents[1]


def commit() -> str | None:
    """Return the git commit that lsgd runs from or was built from, or None if unknown.

    For a checkout it is the result of commit_of; for an installed package that of the checkout
    which it was built from, if it was one.
    """
    return commit_of(_PACKAGE.parent) or _built_from()


def _built_from() -> str | None:
    """Read the git commit that this installed package was built from; None if none is recorded."""
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


def library_versions(*peers: str) -> dict[str, str]:
    """Return the versions of Python, lsgd, installed libraries and the packages `peers`.

    Packages that are not installed are omitted. With a GPU that torch can use, it also has the
    versions of CUDA, cuDNN, NCCL and the driver.
    """
    # Not at the import, since a build of the package has no torch.
    import torch

    installed = {"python": platform.python_version(), "lsgd": lsgd.__version__}
    for name in (*LIBRARIES, *peers, *DALI):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    if torch.cuda.is_available():
        installed["CUDA"] = str(torch.version.cuda)
        installed["cuDNN"] = str(torch.backends.cudnn.version())
        if torch.distributed.is_nccl_available():
            installed["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
        if driver := nvidia_driver():
            installed["driver"] = driver
    return installed
