"""Files that are there whole or not at all, whenever the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when all is written; one of that name is replaced."""
    beside = path.with_name(f".{path.name}.part")
    with beside.open("wb") as file:
        yield file
    os.replace(beside, path)
