"""The folder that a plan is kept in."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsgd.files import make_out


@contextmanager
def new_folder(folder: Path | None) -> Iterator[Path | None]:
    """The folder, made now so that nobody else takes it; gone again if what fills it fails.

    Raises Refused if it is there already or cannot be made.
    """
    if folder is None:
        yield None
        return
    make_out(folder)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder)
        raise
