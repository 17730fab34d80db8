"""The file of the weights that a run starts from: its place in a folder, and its hash."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.paths import CHECKPOINT, existing_checkpoint
from lsgd.recipe import Model
from lsgd.untrusted_files import open_regular

FILES = (CHECKPOINT, "model.safetensors")
"""The file of weights in a run folder, the link to its newest checkpoint, and that of an export."""


def start_file(start: str) -> Path:
    """Return the file of weights that the field model.start names, itself or by its folder.

    Raises UsageError if it is missing.
    """
    return file_of_weights(Path(start), f"model.start={start}")


def file_of_weights(path: Path, what: str) -> Path:
    """Return the file of weights at a path: the path itself, or the file in it if it is a folder.

    Raises UsageError, which begins with `what`, if the folder has none.
    """
    if not path.is_dir():
        return existing_checkpoint(path)
    for name in FILES:
        if (file := existing_checkpoint(path / name)).exists():
            return file
    raise UsageError(
        f"{what} is a folder without {' or '.join(FILES)}; write a run folder with a "
        "checkpoint, a folder of lsgd export, or a file"
    )


def with_start_hash(model: Model) -> Model:
    """Record the SHA-256 of a network's start file, which identifies its initial weights.

    Raises UsageError if the file cannot be read.
    """
    assert model.start
    file = start_file(model.start)
    try:
        state = file.stat()
        digest = _sha256(file, state.st_ino, state.st_mtime_ns, state.st_size)
    except (OSError, ValueError) as error:  # the latter for a path with a null character
        raise unreadable_start(model.start, error) from None
    return replace(model, start_sha256=digest)


def unreadable_start(start: str, error: OSError | ValueError) -> UsageError:
    """Return the error for a file of start weights (model.start) that cannot be opened or read."""
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UsageError(
        f"model.start={start} cannot be read ({why}); write the path of a "
        "file of weights, or of a run folder"
    )


@lru_cache(maxsize=8)
def _sha256(file: Path, *_state: int) -> str:
    """Return the SHA-256 of a version of a file; a process composes a recipe several times."""
    with open_regular(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
