"""Tagged sentences in the format of CoNLL-2003 (Tjong Kim Sang and De Meulder 2003).

A line has a word, its tag in the last column, and what may stand between them, with spaces or tabs
in between; an empty line ends a sentence, and lines of -DOCSTART- part the documents. A tag is O
outside all spans, and inside one B-KIND or I-KIND: in IOB1, as CoNLL-2003 has it, B- only parts two
neighbours of one kind, and in BIO each span begins with it. Both are taken as they are.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Data
from lsgd.text import check_counts, read_corpus, read_lines

FILES = (
    {"train": "eng.train", "val": "eng.testa", "test": "eng.testb"},
    {"train": "train.txt", "val": "valid.txt", "test": "test.txt"},
)
"""How the files of a corpus are called: as in 2003, or as copies of it are; one of both."""
DOCUMENT = "-DOCSTART-"
OUTSIDE = "O"
UNKNOWN = 0
"""The number of all words that the training sentences do not have."""

TaggedSentence = tuple[tuple[str, ...], tuple[str, ...]]
"""The words of a sentence and their tags."""


@dataclass(frozen=True)
class Sentences:
    """Sentences one behind the other, as numbers."""

    words: NDArray[np.int64]
    """The words of all sentences, shape (tokens,)."""
    tags: NDArray[np.int64]
    """The tag of each word, shape (tokens,)."""
    lengths: NDArray[np.int64]
    """The number of tokens of each sentence, shape (sentences,); none is empty."""

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The place of each sentence's first token in `words`, shape (sentences,)."""
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True)
class TaggedCorpus:
    """The sets of a corpus, which share their vocabulary."""

    sets: dict[str, Sentences]
    """The sentences of train, val and test; test may be without any."""
    words: tuple[str, ...]
    """The different words of the training sentences, sorted; their numbers begin with 1."""
    tags: tuple[str, ...]
    """The different tags of all sentences: O, then the others, sorted; their numbers begin with 0.
    """

    @property
    def counts(self) -> dict[str, int]:
        """Its numbers, by the fields of a recipe's data that have to be the same."""
        examples = {f"{name}_examples": len(each.lengths) for name, each in self.sets.items()}
        return examples | {"classes": len(self.tags), "words": len(self.words) + 1}


def open_tagged(data: Data) -> TaggedCorpus:
    """The corpus of a dataset; raises Refused if it is missing, or not what the recipe says."""
    corpus = read_corpus(data, lambda root: read_tagged(root, lowercase=data.lowercase))
    check_counts(data, corpus.counts)
    return corpus


@cache
def read_tagged(root: Path, *, lowercase: bool) -> TaggedCorpus:
    """The corpus in this folder, read once by each process; only a test set may be missing.

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
    if lowercase:
        for name, text in texts.items():
            texts[name] = [(tuple(map(str.lower, words)), tags) for words, tags in text]
    # Sorted by code points, which no language setting of a machine changes.
    words = sorted({word for words, _ in texts["train"] for word in words})
    tags = {tag for text in texts.values() for _, tags in text for tag in tags}
    vocabulary = OUTSIDE, *sorted(tags - {OUTSIDE})
    number_of_word = {word: number for number, word in enumerate(words, UNKNOWN + 1)}
    number_of_tag = {tag: number for number, tag in enumerate(vocabulary)}
    sets = {
        name: Sentences(
            _numbers(number_of_word.get(word, UNKNOWN) for words, _ in text for word in words),
            _numbers(number_of_tag[tag] for _, tags in text for tag in tags),
            _numbers(len(words) for words, _ in text),
        )
        for name, text in texts.items()
    }
    return TaggedCorpus(sets, tuple(words), vocabulary)


def read_sentences(path: Path) -> Iterator[TaggedSentence]:
    """The sentences of a file in turn. Raises ValueError with file and line for what is none."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*read_lines(path), ""], 1):
        # Not str.split(), which would part a word at a no-break space too.
        columns = [column for column in re.split("[ \t\r]+", line) if column]
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


def _numbers(values: Iterator[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)
