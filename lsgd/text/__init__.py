"""Corpora: texts and tagged sentences as numbers, read from their files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from lsgd import paths
from lsgd.errors import Refused
from lsgd.recipe import Data

Corpus = TypeVar("Corpus")


def read_corpus(data: Data, read: Callable[[Path], Corpus]) -> Corpus:
    """What `read` makes of the folder of a dataset; raises Refused if that is missing or broken."""
    root = folder(data)
    try:
        return read(root)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refused(
            f"no {data.name} at {root}: {error.filename} is missing; run `python -m lsgd.prepare "
            f"{data.name} {root}`, which fetches it, or write data.root=FOLDER, or "
            "inputs=synthetic to train on a made-up text"
        ) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise Refused(f"{data.name} at {root} cannot be read ({error}); mend that file") from None


def folder(data: Data) -> Path:
    """Where the files of a dataset are looked for."""
    return Path(data.root) if data.root else paths.data_root(data.name)


def check_counts(data: Data, counts: Mapping[str, int]) -> None:
    """Raise Refused if a corpus has other counts than the recipe; they are named by their fields.

    The sentence has all words that make a recipe of it, ready to copy.
    """
    others = {name: count for name, count in counts.items() if count != getattr(data, name)}
    if others:
        expected = ", ".join(f"data.{name}={getattr(data, name)}" for name in others)
        words = " ".join(f"data.{name}={count}" for name, count in others.items())
        raise Refused(
            f"{data.name} at {folder(data)} is not that of the recipe, which has {expected}; "
            f"complete it, or write {words} for another trajectory"
        )
