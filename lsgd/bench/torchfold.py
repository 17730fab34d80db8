"""TorchFold 0.1.0 of 2018, which lsgd.fold is measured against: fetched, and made to run today.

It is neither installed nor part of lsgd: its wheel is read where it lies, in the user's cache.
"""

import hashlib
import os
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from lsgd.bench.environment import cache
from lsgd.errors import Refused
from lsgd.job.children import failure, finished

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
"""Old and new text of its source, for a torch that it does not know."""
LIMIT = 120.0
"""Seconds that a slow network may take for 9 kB."""


def place() -> Path:
    """The file of the wheel in the user's cache."""
    return cache() / "wheels" / WHEEL


def fetched() -> Path:
    """The wheel in the user's cache, where pip puts it if it is not there yet.

    Raises Refused, in one sentence, if there is no network and no index that has it.
    """
    file = place()
    if file.exists():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=file.parent) as folder:
            wanted = Path(folder, "requirements.txt")
            wanted.write_text(f"torchfold=={VERSION} --hash=sha256:{SHA256}\n")
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
            options = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
            code, text = finished([*pip, *options, "-r", str(wanted), "-d", folder], limit=LIMIT)
            if code != 0:
                errors = "\n".join(line for line in text.splitlines() if line.startswith("ERROR"))
                why = failure(code, errors or text, LIMIT)
                raise Refused(
                    f"torchfold=={VERSION} cannot be fetched: {why}; it needs a network, or an "
                    "index that pip is configured for"
                )
            os.replace(Path(folder, WHEEL), file)
    except OSError as error:
        raise Refused(
            f"the cache {file.parent} cannot be written ({error.strerror}); set XDG_CACHE_HOME to "
            "a folder that can"
        ) from None
    return file


def loaded(wheel: Path) -> ModuleType:
    """The module of a wheel that `fetched` has named, with CHANGES.

    Raises Refused if the file is another one, of which nothing is run.
    """
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != SHA256:
        raise Refused(
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
