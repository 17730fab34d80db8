"""A reader of trees in the format of the Stanford Sentiment Treebank (Socher et al. 2013).

    ROOT/train.txt  ROOT/dev.txt  ROOT/test.txt

A line is a tree: (LABEL WORD) is a leaf and (LABEL LEFT RIGHT) a node with two subtrees. Labels are
0 and up, from the most negative class to the most positive one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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

FILES = {"train": "train.txt", "val": "dev.txt", "test": "test.txt"}
UNKNOWN = 0
"""The number of all words that do not occur in the training trees."""
ABSENT = -1
"""The placeholder for the word of an inner node, and for the children of a leaf."""


class Tree(NamedTuple):
    """A parsed sentence as a tree of labelled nodes, children before parents, the root last."""

    words: list[str]
    """The word of each leaf, and "" for inner nodes."""
    left: list[int]
    """The position of each node's first child among the nodes of the tree, or ABSENT for a leaf."""
    right: list[int]
    """The position of each node's second child, likewise."""
    labels: list[int]


@dataclass(frozen=True)
class TreeSet(Concatenation):
    """The parsed sentences of a set (train, val or test) as concatenated arrays of tree nodes."""

    words: NDArray[np.int64]
    """The word of each leaf, and ABSENT for inner nodes, shape (nodes,)."""
    left: NDArray[np.int64]
    """The position of each node's first child, or ABSENT for a leaf, shape (nodes,).

    It counts from the first node of the tree, and children come before their parent.
    """
    right: NDArray[np.int64]
    """The position of each node's second child, likewise."""
    labels: NDArray[np.int64]
    """The label of each node, shape (nodes,)."""
    lengths: NDArray[np.int64]
    """The number of nodes of each tree, shape (trees,); the last node of a tree is its root."""


@dataclass(frozen=True)
class TreeCorpus:
    """A corpus of parsed sentences: its train, val and test trees, with their common vocabulary."""

    sets: dict[str, TreeSet]
    """The trees of train, val and test; test may be empty."""
    words: tuple[str, ...]
    """The distinct words of the training trees, sorted; their numbers begin with 1."""
    classes: int
    """The number of labels: one more than the largest label of all sets."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The whole corpus of parsed sentences as arrays by name, for comparing copies of it."""
        return corpus_columns(self.sets, words=self.words)

    @property
    def counts(self) -> dict[str, int]:
        """The sizes of the tree corpus, by the recipe's data fields that must equal them."""
        examples = {f"{name}_examples": len(trees.lengths) for name, trees in self.sets.items()}
        return examples | {"classes": self.classes, "words": len(self.words) + 1}


def open_tree_corpus(data: Data) -> TreeCorpus:
    """Read a recipe's corpus of parsed sentences and check its sizes.

    Raises UsageError if the corpus is missing or not the recipe's.
    """
    corpus = read_corpus(data, lambda root: read_tree_corpus(root, lowercase=data.lowercase))
    check_counts(data, corpus.counts)
    return corpus


@cached_while_unchanged(FILES.values())
def read_tree_corpus(root: Path, *, lowercase: bool) -> TreeCorpus:
    """Read a corpus of parsed sentences from a folder; only its test set may be missing.

    Raises OSError for a missing file, and ValueError with file and line for a broken one.
    """
    texts = {
        name: list(read_trees(root / file))
        for name, file in FILES.items()
        if name != "test" or (root / file).exists()
    }
    check_not_empty(texts, FILES)
    if lowercase:
        texts = {
            name: [tree._replace(words=[word.lower() for word in tree.words]) for tree in trees]
            for name, trees in texts.items()
        }
    # Sorted by code points, so that the order does not depend on the locale.
    words = sorted({word for tree in texts["train"] for word in tree.words if word})
    numbers = {"": ABSENT} | {word: number for number, word in enumerate(words, UNKNOWN + 1)}
    labels = (label for trees in texts.values() for tree in trees for label in tree.labels)
    sets = {name: _numbered(texts.get(name, ()), numbers) for name in FILES}
    return TreeCorpus(sets, tuple(words), max(labels, default=-1) + 1)


def _numbered(trees: Sequence[Tree], numbers: dict[str, int]) -> TreeSet:
    return TreeSet(
        int_array(numbers.get(word, UNKNOWN) for tree in trees for word in tree.words),
        int_array(place for tree in trees for place in tree.left),
        int_array(place for tree in trees for place in tree.right),
        int_array(label for tree in trees for label in tree.labels),
        int_array(len(tree.labels) for tree in trees),
    )


def read_trees(path: Path) -> Iterator[Tree]:
    """Yield the parsed sentences of a file as trees; raises ValueError for an invalid line.

    The message has the file and the line.
    """
    for number, line in enumerate(read_lines(path), 1):
        if line:
            try:
                yield parse(line)
            except ValueError as error:
                raise ValueError(f"{path.name}, line {number}, {error}") from None


def parse(line: str) -> Tree:
    """Parse a bracketed sentence, such as (3 (2 not) (1 bad)), into a tree; raises ValueError.

    The message is the end of a sentence about the line.

    >>> parse("(3 (2 not) (1 bad))")
    Tree(words=['not', 'bad', ''], left=[-1, -1, 0], right=[-1, -1, 1], labels=[2, 1, 3])
    """
    tree = Tree([], [], [], [])
    # The contents of each open bracket so far: a label, then a word or the positions of two nodes.
    opened: list[list[Any]] = [[]]
    # Split only at this space: other spaces may be part of a word.
    for token in re.findall("[()]|[^() ]+", line):
        if token == "(":
            opened.append([])
        elif token == ")" and len(opened) > 1:
            node = opened.pop()
            word, left, right = "", ABSENT, ABSENT
            kinds = [*map(type, node)]
            if kinds == [str, str]:
                label, word = node
            elif kinds == [str, int, int]:
                label, left, right = node
            else:
                shown = " ".join(part if isinstance(part, str) else "TREE" for part in node)
                raise ValueError(
                    f"has ({shown}), which is neither (LABEL WORD) nor (LABEL TREE TREE)"
                )
            if not (label.isascii() and label.isdecimal() and len(label) < 4):
                raise ValueError(f"has a node with the label {label!r}, and needs 0, 1, … or 999")
            opened[-1].append(len(tree.labels))
            tree.words.append(word)
            tree.left.append(left)
            tree.right.append(right)
            tree.labels.append(int(label))
        else:
            opened[-1].append(token)
    if len(opened) > 1:
        raise ValueError(
            f"has brackets that are not closed ({len(opened) - 1}), and needs all of them"
        )
    if opened != [[len(tree.labels) - 1]] or not tree.labels:
        raise ValueError("is not one tree, such as (3 (2 not) (1 bad))")
    return tree
