"""The folder of a search, and what says that it is of this search and no other."""

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lsgd import config, files
from lsgd.errors import Refused
from lsgd.run.tuned import DEFINITION, SEARCHES
from lsgd.search.space import Space


def definition(space: Space) -> dict[str, Any]:
    """All that decides which points a search has, however many of them."""
    search = space.search
    prune = search.prune
    return {
        "recipe": search.recipe,
        "words": space.words,
        "fingerprint": space.recipe({}).fingerprint,
        "space": search.space,
        "sampler": search.sampler,
        "sampler_seed": search.sampler_seed,
        "seeds": search.seeds,
        "prune": prune and vars(prune),
    }


def folder_of(space: Space) -> Path:
    """`runs/searches/NAME`; a search that words have changed gets a folder of its own."""

    def essence(of: Space) -> str:
        return json.dumps(definition(of) | {"words": None}, sort_keys=True)

    name = space.search.name
    if essence(space) == essence(Space(config.load_search(name), [])):
        return SEARCHES / name
    return SEARCHES / f"{name}-{hashlib.sha256(essence(space).encode()).hexdigest()[:8]}"


def open_folder(space: Space) -> Path:
    """The folder, made if it is not there; raises Refused if it is of another search."""
    folder = folder_of(space)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "begin"):
        check_folder(folder, space)
        if not (folder / DEFINITION).exists():
            with files.whole(folder / DEFINITION) as file:
                file.write(json.dumps(definition(space), indent=1).encode() + b"\n")
    return folder


def check_folder(folder: Path, space: Space) -> None:
    """Raise Refused if the folder is there and of another search."""
    path = folder / DEFINITION
    if path.exists():
        theirs, ours = json.loads(path.read_text(encoding="utf-8")), definition(space)
        different = [key for key in ours if key != "words" and theirs.get(key) != ours[key]]
        if different:
            raise Refused(
                f"{folder} is of a search with another {' and '.join(different)}: "
                f"its file {space.search.name}.yaml has changed since; move the folder away, or "
                "give the changed search a name of its own"
            )


def lock(folder: Path, name: str, *, wait: bool) -> IO[str] | None:
    """The lock of this name, which is held until it is closed or the process ends, however.

    None if another process has it, and this one is not to wait.
    """
    path = folder / "locks" / name
    path.parent.mkdir(exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Wait for the lock of this name, and hold it for a while."""
    file = lock(folder, name, wait=True)
    assert file
    with file:
        yield
