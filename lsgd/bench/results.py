"""Where a measurement is kept: a folder that was not there before, and whole files in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsgd.errors import Refused
from lsgd.files import whole


@contextmanager
def new_folder(folder: Path | None) -> Iterator[Path | None]:
    """The folder, made now so that nobody else takes it; gone again if nothing came of it.

    Raises Refused if it is there already.
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
    try:
        yield folder
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def write(folder: Path, name: str, found: dict[str, Any], report: str) -> None:
    """NAME.json with all that was found, and README.md with what it says."""
    write_json(folder, name, found)
    _write(folder / "README.md", report)


def write_json(folder: Path, name: str, found: dict[str, Any]) -> None:
    """NAME.json with what was found so far, in place of what was there of this measurement."""
    _write(folder / f"{name}.json", json.dumps(found, indent=1))


def _write(file: Path, text: str) -> None:
    with whole(file) as out:
        out.write(f"{text}\n".encode())
