"""Readers of text corpora, which return texts, tagged sentences and trees as numbers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields
from functools import cached_property, lru_cache, wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import UsageError
from lsgd.recipe import Data
from lsgd.recipe.image_folder import prepare_command
from lsgd.untrusted_files import open_regular

Corpus = TypeVar("Corpus")

FETCHED = ("ptb", "conll2003", "sst")
"""The names of the text corpora that lsgd.prepare fetches."""
LONGEST_WORD = 10_000
"""The number of characters of the longest word: a vocabulary has an array of that width."""


def read_corpus(data: Data, read: Callable[[Path], Corpus]) -> Corpus:
    """Read a corpus from its folder by `read`; raises UsageError if it is missing or broken."""
    root = data.folder
    try:
        return read(root)
    except (FileNotFoundError, NotADirectoryError) as error:
        # Nothing is downloaded into a folder with the user's own files.
        has_texts = any(True for each in ("[!.]*.txt", "eng.*") for _ in root.glob(each))
        fetch = f"run `{prepare_command(data.name, root)}`, which fetches it"
        advice = fetch if data.name in FETCHED and not has_texts else "put it there"
        raise UsageError(
            f"no {data.name} at {root}: {error.filename} is missing; {advice}, or write "
            "data.root=FOLDER, or inputs=synthetic to train on made-up examples"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{data.name} at {root} cannot be read ({error}); fix that file") from None


def cached_while_unchanged(
    names: Iterable[str],
) -> Callable[[Callable[..., Corpus]], Callable[..., Corpus]]:
    """Let a function that reads a corpus from a folder return the last one until a file changes.

    `names` are those of the files that it reads if they exist.
    """
    names = tuple(names)

    def decorate(read: Callable[..., Corpus]) -> Callable[..., Corpus]:
        @lru_cache(maxsize=1)
        def read_version(root: Path, *versions: object, **options: bool) -> Corpus:
            return read(root, **options)

        @wraps(read)
        def read_cached(root: Path, **options: bool) -> Corpus:
            versions = (_version(root / name) for name in names)
            return read_version(root, *versions, **options)

        return read_cached

    return decorate


def _version(file: Path) -> tuple[int, ...]:
    """Return numbers that differ if a file has been written to; none if it is missing."""
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_mtime_ns, state.st_size


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file without trailing blanks and trailing empty lines.

    A byte-order mark, trailing blanks and the line ends of Windows and old Macs are removed, since
    editors add them. Raises ValueError with file and line for a line that is not UTF-8 or has too
    long a word.
    """
    with open_regular(path) as file:
        content = file.read()
    for end in (b"\r\r\n", b"\r\n", b"\r"):
        content = content.replace(end, b"\n")
    try:
        lines = content.decode("utf-8").removeprefix("\ufeff").split("\n")
    except UnicodeDecodeError as error:
        broken = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path.name}, line {broken}, is not in UTF-8") from None
    # Not str.rstrip(), which would also remove other spaces, and these may be part of a word.
    lines = [line.rstrip(" \t") for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_WORD:
            longest = max(map(len, re.split("[ \t()]", line)))
            if longest > LONGEST_WORD:
                raise ValueError(
                    f"{path.name}, line {number}, has a word of {longest:,} characters, and at "
                    f"most {LONGEST_WORD:,} are possible"
                )
    return lines


def check_not_empty(texts: Mapping[str, Sized], files: Mapping[str, str]) -> None:
    """Raise ValueError, with the name of the file, if the train or val text of a corpus is empty.

    Both arguments are by the name of the set.
    """
    for name in ("train", "val"):
        if not len(texts[name]):
            raise ValueError(f"{files[name]} is empty")


def check_counts(data: Data, counts: Mapping[str, int]) -> None:
    """Raise UsageError if the sizes of a text corpus differ from those in the recipe's data.

    The message has all overrides that adapt the recipe, ready to copy.
    """
    others = {name: count for name, count in counts.items() if count != getattr(data, name)}
    if others:
        expected = ", ".join(f"data.{name}={getattr(data, name)}" for name in others)
        overrides = " ".join(f"data.{name}={count}" for name, count in others.items())
        raise UsageError(
            f"{data.name} at {data.folder} differs from the recipe, which has "
            f"{expected}; complete it, or write {overrides} for another trajectory"
        )


def corpus_columns(
    sets: Mapping[str, Any], **vocabularies: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return all arrays of a corpus's sets, and its vocabularies as arrays, by name.

    Sets are dataclasses of arrays. Names are such as `train tags` and `vocabulary words`.
    """
    of_sets = {
        f"{name} {field.name}": getattr(each, field.name)
        for name, each in sets.items()
        for field in fields(each)
    }
    return of_sets | {
        f"vocabulary {name}": np.array(words, np.str_) for name, words in vocabularies.items()
    }


class Concatenation:
    """A base class of sets of examples, such as sentences, whose elements are concatenated."""

    lengths: NDArray[np.int64]

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The position of each example's first element, shape (examples,)."""
        return np.cumsum(self.lengths) - self.lengths


def int_array(values: Iterable[int]) -> NDArray[np.int64]:
    """Return an int64 array of these integers."""
    return np.fromiter(values, dtype=np.int64)


def word_places(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each word's sentence and position in it, for concatenated sentences of these lengths.

    Both have the shape (words,). It also serves for the nodes of concatenated trees.
    """
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    return sentence, np.arange(len(sentence)) - (np.cumsum(lengths) - lengths)[sentence]
