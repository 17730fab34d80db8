"""Files and folders that are there whole or not at all, and files that outlast a full disk."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lsgd.errors import FULL, Refused


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when all is written; one of that name is replaced."""
    partial = path.with_name(f".{path.name}.part")
    with partial.open("wb") as file:
        yield file
    os.replace(partial, path)


@contextmanager
def new_folder(folder: Path | None, *, parts_stay: bool = False) -> Iterator[Path | None]:
    """The folder of an option --out, made at once so that nobody else takes it; None for None.

    The folder is removed again if the caller fails or writes nothing. With `parts_stay` what was
    written before a failure stays, since it took hours and is worth something by itself. Raises
    Refused if the folder is there already or cannot be made.
    """
    if folder is None:
        yield None
        return
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise Refused(
            f"--out {folder} is there already, and results are never overwritten; write another"
        ) from None
    except OSError as error:
        raise Refused(f"--out {folder} cannot be made ({error.strerror}); write another") from None
    complete = False
    try:
        yield folder
        complete = True
    finally:
        if not (complete or parts_stay) or not any(folder.iterdir()):
            shutil.rmtree(folder)


class Appended:
    """A file to whose end is written, at once: what was written outlives the process.

    Content that finds the disk full waits in `unwritten` until there is space again.
    """

    def __init__(self, path: Path) -> None:
        self.file = path.open("ab", buffering=0)
        self.unwritten = bytearray()

    def write(self, content: bytes) -> None:
        """Write the content, after what is still unwritten."""
        self.unwritten += content
        try:
            while self.unwritten:
                del self.unwritten[: self.file.write(self.unwritten)]
        except OSError as error:
            if error.errno not in FULL:
                raise

    def close(self) -> None:
        """Try a last time to write what is unwritten."""
        self.write(b"")
        self.file.close()
