"""A reader of tagged sentences in the format of CoNLL-2003 (Tjong Kim Sang and De Meulder 2003).

A line has a word in its first column and its tag in the last one, separated by spaces or tabs;
other columns are ignored. An empty line ends a sentence, and -DOCSTART- lines separate documents. A
tag is O outside all spans, and B-KIND or I-KIND inside one. In IOB1, the format of CoNLL-2003, B-
only separates two adjacent spans of one kind; in BIO each span begins with it. Tags of both formats
are kept unchanged.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Data
from lsgd.text import (
    Concatenation,
    cached_while_unchanged,
    check_counts,
    check_not_empty,
    corpus_columns,
    int_array,
    read_corpus,
    read_lines,
)

FILES = (
    {"train": "eng.train", "val": "eng.testa", "test": "eng.testb"},
    {"train": "train.txt", "val": "valid.txt", "test": "test.txt"},
)
"""The file names of a corpus: those of 2003 or those of its common copies, never both."""
DOCUMENT = "-DOCSTART-"
OUTSIDE = "O"
UNKNOWN = 0
"""The number of all words that do not occur in the training sentences."""

TaggedSentence = tuple[tuple[str, ...], tuple[str, ...]]
"""The words of a sentence and their tags."""


@dataclass(frozen=True)
class Sentences(Concatenation):
    """The tagged sentences of a set (train, val or test), concatenated, as arrays of numbers."""

    words: NDArray[np.int64]
    """The words of all sentences, shape (tokens,)."""
    tags: NDArray[np.int64]
    """The tag of each word, shape (tokens,)."""
    lengths: NDArray[np.int64]
    """The number of tokens of each sentence, at least 1, shape (sentences,)."""


@dataclass(frozen=True)
class TaggedCorpus:
    """A corpus of tagged sentences: its train, val and test sets, with their common vocabulary."""

    sets: dict[str, Sentences]
    """The sentences of train, val and test; test may be empty."""
    words: tuple[str, ...]
    """The distinct words of the training sentences, sorted; their numbers begin with 1."""
    tags: tuple[str, ...]
    """The distinct tags of all sentences, O first and then sorted; their numbers begin with 0."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The whole corpus of tagged sentences as arrays by name, for comparing copies of it."""
        return corpus_columns(self.sets, words=self.words, tags=self.tags)

    @property
    def counts(self) -> dict[str, int]:
        """The sizes of the tagged corpus, by the recipe's data fields that must equal them."""
        examples = {f"{name}_examples": len(each.lengths) for name, each in self.sets.items()}
        return examples | {"classes": len(self.tags), "words": len(self.words) + 1}


def open_tagged_corpus(data: Data) -> TaggedCorpus:
    """Read a recipe's corpus of tagged sentences and check its sizes.

    Raises UsageError if the corpus is missing or not the recipe's.
    """
    corpus = read_corpus(data, lambda root: read_tagged_corpus(root, lowercase=data.lowercase))
    check_counts(data, corpus.counts)
    return corpus


@cached_while_unchanged(name for names in FILES for name in names.values())
def read_tagged_corpus(root: Path, *, lowercase: bool) -> TaggedCorpus:
    """Read a corpus of tagged sentences from a folder; only its test set may be missing.

    Raises OSError for a missing file, and ValueError with file and line for a broken one.
    """
    there = [names for names in FILES if (root / names["train"]).exists()]
    if len(there) > 1:
        raise ValueError(f"it has {' and '.join(names['train'] for names in there)}; keep one")
    names = there[0] if there else FILES[0]
    texts = {
        name: list(read_sentences(root / file)) for name, file in names.items() if name != "test"
    }
    test = root / names["test"]
    texts["test"] = list(read_sentences(test)) if test.exists() else []
    check_not_empty(texts, names)
    if lowercase:
        for name, text in texts.items():
            texts[name] = [(tuple(map(str.lower, words)), tags) for words, tags in text]
    # Sorted by code points, so that the order does not depend on the locale.
    words = sorted({word for words, _ in texts["train"] for word in words})
    tags = {tag for text in texts.values() for _, tags in text for tag in tags}
    vocabulary = OUTSIDE, *sorted(tags - {OUTSIDE})
    number_of_word = {word: number for number, word in enumerate(words, UNKNOWN + 1)}
    number_of_tag = {tag: number for number, tag in enumerate(vocabulary)}
    sets = {
        name: Sentences(
            int_array(number_of_word.get(word, UNKNOWN) for words, _ in text for word in words),
            int_array(number_of_tag[tag] for _, tags in text for tag in tags),
            int_array(len(words) for words, _ in text),
        )
        for name, text in texts.items()
    }
    return TaggedCorpus(sets, tuple(words), vocabulary)


def read_sentences(path: Path) -> Iterator[TaggedSentence]:
    """Yield the tagged sentences of a CoNLL file; raises ValueError for an invalid line.

    The message has the file and the line.
    """
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        # Not str.split(), which would also split a word at a no-break space.
        columns = [column for column in re.split("[ \t]+", line) if column]
        if not columns or columns[0] == DOCUMENT:
            if words:
                yield tuple(words), tuple(tags)
                words, tags = [], []
            continue
        if len(columns) < 2:
            raise ValueError(
                f"{path.name}, line {number}, has {columns[0]!r} alone and needs a word and its tag"
            )
        if not re.fullmatch(r"O|[BI]-.+", columns[-1]):
            raise ValueError(
                f"{path.name}, line {number}, ends with {columns[-1]!r} and needs a tag: O, B-KIND "
                "or I-KIND"
            )
        words.append(columns[0])
        tags.append(columns[-1])
