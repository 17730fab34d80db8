"""The folder that a plan is kept in."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsgd.errors import Refused


@contextmanager
def new_folder(folder: Path | None) -> Iterator[Path | None]:
    """The folder, made now so that nobody else takes it; gone again if what fills it fails.

    Raises Refused if it is there already or cannot be made.
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
    except BaseException:
        shutil.rmtree(folder)
        raise
