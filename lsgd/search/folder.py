"""The folder of a search: its name, its locks, and the definition that ties it to one search."""

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lsgd import definitions, files
from lsgd.errors import UsageError, writing_to
from lsgd.run.tuned import DEFINITION, SEARCHES
from lsgd.search.space import SearchSpace
from lsgd.untrusted_files import parse_json, read_bounded

REMEDY = "start the search in a folder that you can write to"


def definition(space: SearchSpace) -> dict[str, Any]:
    """Return the settings that decide which trials a search makes, except the number of trials."""
    search = space.search
    prune = search.prune
    return {
        "recipe": search.recipe,
        "words": space.overrides,
        "fingerprint": space.recipe({}).fingerprint,
        "space": search.space,
        "sampler": search.sampler,
        "sampler_seed": search.sampler_seed,
        "seeds": search.seeds,
        "prune": prune and vars(prune),
    }


def definition_hash(space: SearchSpace) -> str:
    """Return a hash of the settings that decide a search's trials, not of how they are spelled."""
    text = json.dumps(definition(space) | {"words": None}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def search_folder(space: SearchSpace) -> Path:
    """Return a search's folder, `runs/searches/NAME`, plus a hash if overrides have changed it.

    A recipe that only the overrides complete, as by the folder of its images, is changed, unless
    NAME is the folder of the same search already.
    """
    name, search, digest = space.search.name, space.search, definition_hash(space)
    # A search without a file has no definition but its own.
    if not search.line:
        try:
            unchanged = SearchSpace(definitions.load_search(search.file or name), [])
            is_changed = digest != definition_hash(unchanged)
        except UsageError:
            is_changed = not (SEARCHES / name / DEFINITION).exists() or bool(
                _differing(SEARCHES / name, space)
            )
        if not is_changed:
            return SEARCHES / name
    return SEARCHES / f"{name}-{digest[:8]}"


def open_folder(space: SearchSpace) -> Path:
    """Create a search's folder with its definition file if they are missing, and return its path.

    Raises UsageError if the folder belongs to a different search or cannot be written, and the
    error of a full disk.
    """
    folder = search_folder(space)
    with writing_to(folder, REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder, "begin"), writing_to(folder, REMEDY):
        check_folder(folder, space)
        if not (folder / DEFINITION).exists():
            values = definition(space) | {"place": uuid.uuid4().hex}
            with files.atomic_write(folder / DEFINITION) as file:
                file.write(json.dumps(values, indent=1).encode() + b"\n")
    return folder


def folder_id(folder: Path) -> str:
    """Return the unique id stored in a search's folder; empty if an earlier version created it."""
    return str(_definition_in(folder).get("place", ""))


def check_folder(folder: Path, space: SearchSpace) -> None:
    """Raise UsageError if a search's folder exists and belongs to a different search."""
    if (folder / DEFINITION).exists() and (different := _differing(folder, space)):
        raise UsageError(
            f"{folder} belongs to a search with a different {' and '.join(different)}: its file "
            f"{space.search.name}.yaml has changed since; move the folder away, or rename the "
            "changed search"
        )


def _differing(folder: Path, space: SearchSpace) -> list[str]:
    """Return the settings in which a search differs from the one that a folder belongs to."""
    theirs, ours = _definition_in(folder), definition(space)
    return [key for key in ours if key != "words" and theirs.get(key) != ours[key]]


def _definition_in(folder: Path) -> dict[str, Any]:
    """Read the definition file in a search's folder; raise UsageError if it is unreadable."""
    try:
        values = parse_json(read_bounded(folder / DEFINITION))
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder / DEFINITION} does not define a search ({error}); move the folder "
            "away to begin again"
        ) from None
    return values


def acquire_lock(folder: Path, name: str, *, wait: bool) -> IO[str] | None:
    """Take a named file lock in a search's folder; closing the file or ending the process frees it.

    Returns None if another process holds it and `wait` is false. Raises UsageError if the folder
    cannot be written or its drive has no locks, and the error of a full disk.
    """
    path = folder / "locks" / name
    with writing_to(folder, REMEDY):
        path.parent.mkdir(exist_ok=True)
        file = path.open("w")
    try:
        if files.lock(file, wait=wait, remedy="start the search in a folder on another drive"):
            return file
    except UsageError:
        file.close()
        raise
    file.close()
    return None


@contextmanager
def hold_lock(folder: Path, name: str) -> Iterator[None]:
    """Wait for a named file lock in a search's folder, and hold the lock within this context."""
    file = acquire_lock(folder, name, wait=True)
    assert file
    with file:
        yield
