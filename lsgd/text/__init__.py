"""Corpora: texts and tagged sentences as numbers, read from their files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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
        # To a folder with files of one's own nothing is fetched.
        own = root.is_dir() and any(root.glob("*.txt"))
        fetch = f"run `python -m lsgd.prepare {data.name} {root}`, which fetches it"
        raise Refused(
            f"no {data.name} at {root}: {error.filename} is missing; "
            f"{'put it there' if own else fetch}, or write data.root=FOLDER, or inputs=synthetic "
            "to train on made-up examples"
        ) from None
    except ValueError as error:
        raise Refused(f"{data.name} at {root} cannot be read ({error}); mend that file") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a file; raises ValueError with file and line for what is not UTF-8."""
    content = path.read_bytes()
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        broken = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path.name}, line {broken}, is not in UTF-8") from None
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


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


def word_places(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sentence of each word, and its place there, of sentences of these lengths that lie one
    behind the other; both have the shape (words,). Trees and their nodes are like them."""
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    return sentence, np.arange(len(sentence)) - (np.cumsum(lengths) - lengths)[sentence]
