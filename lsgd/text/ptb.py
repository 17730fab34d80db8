"""Texts for language models: files of words, a sentence a line, as Penn Treebank comes.

    ROOT/NAME.train.txt  ROOT/NAME.valid.txt  ROOT/NAME.test.txt

A token is a word or the end of a line. The vocabulary is that of the training text, whatever else
is there; `<unk>` stands for other words, if the training text has it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Data
from lsgd.text import check_counts, read_corpus, read_lines

END, UNKNOWN = "<eos>", "<unk>"
FILES = {"train": "train", "val": "valid", "test": "test"}
"""The sets, and what their files are called between the name and .txt."""


@dataclass(frozen=True)
class Texts:
    """The tokens of each set, shape (tokens,), as numbers in the vocabulary."""

    sets: dict[str, NDArray[np.int32]]
    vocabulary: list[str]
    """The words by their numbers: the most frequent one of the training text first."""


def open_texts(data: Data) -> Texts:
    """The texts of a dataset; raises Refused if they are missing, or not what the recipe says."""
    texts = read_corpus(data, lambda root: read_texts(root, data.name))
    check_counts(
        data,
        {f"{name}_examples": len(tokens) for name, tokens in texts.sets.items()}
        | {"classes": len(texts.vocabulary)},
    )
    return texts


def read_texts(root: Path, dataset: str) -> Texts:
    """The texts in this folder; only a test set may be missing.

    Raises OSError for a missing file, and ValueError with the file for one that cannot be used.
    """
    files = {name: root / f"{dataset}.{part}.txt" for name, part in FILES.items()}
    words = {
        name: list(_words(file)) if name != "test" or file.exists() else []
        for name, file in files.items()
    }
    # Equally frequent words by the alphabet, so that every machine numbers them alike.
    ranks = Counter(words["train"])
    vocabulary = sorted(ranks, key=lambda word: (-ranks[word], word))
    number = {word: index for index, word in enumerate(vocabulary)}
    sets = {}
    for name, text in words.items():
        tokens = [number.get(word, number.get(UNKNOWN, -1)) for word in text]
        if -1 in tokens:
            word = text[tokens.index(-1)]
            raise ValueError(
                f"{files[name].name} has the word {word!r}, and the training text neither it nor "
                f"{UNKNOWN}"
            )
        sets[name] = np.array(tokens, np.int32)
    return Texts(sets, vocabulary)


def _words(path: Path) -> Iterator[str]:
    for line in read_lines(path):
        # Not at other spaces than these, which may be a part of a word.
        yield from (word for word in line.split(" ") if word)
        yield END
