"""TorchFold 0.1.0 of 2018, the baseline for lsgd.fold, fetched and adapted to today's torch.

It is neither installed nor part of lsgd: its wheel is read from the user's cache.
"""

import hashlib
import os
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from lsgd.errors import UsageError
from lsgd.job.children import describe_failure, run_with_limit
from lsgd.paths import cache_dir

VERSION = "0.1.0"
WHEEL = f"torchfold-{VERSION}-py3-none-any.whl"
SHA256 = "53721bbf32b61119f596b23d44061503497d5eb6fa67a3c1c82ba008842b3c26"
CHANGES = (
    # A tensor has been its own Variable since torch 0.4.
    (
        "from torch.autograd import Variable\n",
        "def Variable(tensor, volatile):\n    return tensor\n",
    ),
    ("torch.tensor._TensorBase, Variable", "torch.Tensor"),
)
"""The old and new texts in its source, for versions of torch after it."""
LIMIT = 120.0
"""The time limit of the download in seconds, for slow networks and a file of 9 kB."""


def wheel_path() -> Path:
    """Return the path of the wheel in the user's cache."""
    return cache_dir() / "wheels" / WHEEL


def fetch_wheel() -> Path:
    """Return the wheel in the user's cache; download it with pip if it is missing.

    Raises UsageError if no network or index has it.
    """
    file = wheel_path()
    if file.exists():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as folder:
            wanted = Path(folder, "requirements.txt")
            wanted.write_text(f"torchfold=={VERSION} --hash=sha256:{SHA256}\n")
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
            options = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
            code, text = run_with_limit(
                [*pip, *options, "-r", str(wanted), "-d", folder], limit=LIMIT
            )
            if code != 0:
                errors = "\n".join(line for line in text.splitlines() if line.startswith("ERROR"))
                why = describe_failure(code, errors or text, LIMIT)
                raise UsageError(
                    f"torchfold=={VERSION} cannot be fetched: {why}; it needs a network, or an "
                    "index that pip is configured for"
                )
            os.replace(Path(folder, WHEEL), file)
    except OSError as error:
        raise UsageError(
            f"the cache {file.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to "
            "a folder that can"
        ) from None
    return file


def load_module(wheel: Path) -> ModuleType:
    """Return the module of TorchFold's wheel, with CHANGES applied to its source.

    Raises UsageError, before any code is run, if the file has another hash.
    """
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != SHA256:
        raise UsageError(
            f"{wheel} has the SHA-256 {digest}, and TorchFold's is {SHA256}; remove the file, and "
            "it is fetched again"
        )
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read("torchfold/torchfold.py").decode()
    for old, new in CHANGES:
        source = source.replace(old, new)
    module = ModuleType("torchfold")
    exec(compile(source, f"{wheel}/torchfold.py", "exec"), vars(module))
    return module
