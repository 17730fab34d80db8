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
from lsgd.text import check_counts, read_corpus

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
    names = [name for name in FILES if name != "test" or data.test_examples]
    texts = read_corpus(data, lambda root: read_texts(root, data.name, names))
    check_counts(
        data,
        {f"{name}_examples": len(tokens) for name, tokens in texts.sets.items()}
        | {"classes": len(texts.vocabulary)},
    )
    return texts


def read_texts(root: Path, dataset: str, names: list[str]) -> Texts:
    """The texts of these sets. Raises ValueError for a word that the vocabulary does not have."""
    words = {name: list(_words(root / f"{dataset}.{FILES[name]}.txt")) for name in names}
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
                f"the {name} text has the word {word!r}, the training text has neither it nor "
                f"{UNKNOWN}"
            )
        sets[name] = np.array(tokens, np.int32)
    return Texts(sets, vocabulary)


def _words(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield from line.split()
            yield END
