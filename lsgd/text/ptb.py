"""A reader of texts for language models in Penn Treebank's format, one sentence a line.

    ROOT/NAME.train.txt  ROOT/NAME.valid.txt  ROOT/NAME.test.txt

A token is a word or the end of a line. The vocabulary is that of the training text; other words
become `<unk>` if the training text contains it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Data
from lsgd.text import check_counts, check_not_empty, read_corpus, read_lines

END, UNKNOWN = "<eos>", "<unk>"
FILES = {"train": "train", "val": "valid", "test": "test"}
"""The name of each set's file between the dataset's name and .txt."""


@dataclass(frozen=True)
class TextCorpus:
    """A text corpus: the token numbers of its train, val and test texts, with their vocabulary."""

    sets: dict[str, NDArray[np.int32]]
    vocabulary: list[str]
    """The words by their numbers, from the most frequent one of the training text."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The whole text corpus as arrays by name, for comparing copies of it."""
        words: dict[str, NDArray[Any]] = {"vocabulary words": np.array(self.vocabulary, np.str_)}
        return words | {f"{name} tokens": tokens for name, tokens in self.sets.items()}


def open_texts(data: Data) -> TextCorpus:
    """Read the texts of a language-model dataset and check their sizes.

    Raises UsageError if the texts are missing or not the recipe's.
    """
    texts = read_corpus(data, lambda root: read_texts(root, data.name))
    check_counts(
        data,
        {f"{name}_examples": len(tokens) for name, tokens in texts.sets.items()}
        | {"classes": len(texts.vocabulary)},
    )
    return texts


def read_texts(root: Path, dataset: str) -> TextCorpus:
    """Read the train, val and test texts of a dataset from a folder; only test may be missing.

    Raises OSError for a missing file, and ValueError with the file's name for an unusable one.
    """
    files = {name: root / f"{dataset}.{part}.txt" for name, part in FILES.items()}
    words = {
        name: list(_words(file)) if name != "test" or file.exists() else []
        for name, file in files.items()
    }
    check_not_empty(words, {name: file.name for name, file in files.items()})
    # Equally frequent words are sorted, so that every machine numbers them equally.
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
    return TextCorpus(sets, vocabulary)


def _words(path: Path) -> Iterator[str]:
    for line in read_lines(path):
        # Split only at blanks and tabs: other spaces may be part of a word.
        yield from (word for word in re.split("[ \t]+", line) if word)
        yield END
