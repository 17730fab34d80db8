"""Trees of sentences in the format of the Stanford Sentiment Treebank (Socher et al. 2013).

    ROOT/train.txt  ROOT/dev.txt  ROOT/test.txt

A line is a tree: (LABEL WORD) is a leaf and (LABEL LEFT RIGHT) a node above two trees, of which the
labels are 0 and up, from the most negative class to the most positive one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Data
from lsgd.text import check_counts, read_corpus, read_lines

FILES = {"train": "train.txt", "val": "dev.txt", "test": "test.txt"}
UNKNOWN = 0
"""The number of all words that the training trees do not have."""
INNER = -1
"""What a node above two others has in place of a word, and a leaf in place of children."""


class Tree(NamedTuple):
    """The nodes of a tree: each behind its children, so that the root is the last one."""

    words: list[str]
    """The word of each leaf, and "" of other nodes."""
    left: list[int]
    """The place of each node's first child among the nodes of the tree, or INNER of a leaf."""
    right: list[int]
    """The same of its second child."""
    labels: list[int]


@dataclass(frozen=True)
class TreeSet:
    """Trees one behind the other, as numbers."""

    words: NDArray[np.int64]
    """The word of each leaf, and INNER of other nodes: shape (nodes,)."""
    left: NDArray[np.int64]
    """The place of each node's first child among the nodes of its tree, before the node itself, or
    INNER of a leaf: shape (nodes,)."""
    right: NDArray[np.int64]
    """The same of its second child."""
    labels: NDArray[np.int64]
    """The label of each node, shape (nodes,)."""
    lengths: NDArray[np.int64]
    """The number of nodes of each tree, shape (trees,); the last one of a tree is its root."""

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The place of each tree's first node in `words`, shape (trees,)."""
        return np.cumsum(self.lengths) - self.lengths


@dataclass(frozen=True)
class TreeCorpus:
    """The sets of a corpus, which share their vocabulary."""

    sets: dict[str, TreeSet]
    """The trees of train, val and test; test may be without any."""
    words: tuple[str, ...]
    """The different words of the training trees, sorted; their numbers begin with 1."""
    classes: int
    """The number of labels: one more than the largest label of all sets."""

    @property
    def counts(self) -> dict[str, int]:
        """Its numbers, by the fields of a recipe's data that have to be the same."""
        examples = {f"{name}_examples": len(trees.lengths) for name, trees in self.sets.items()}
        return examples | {"classes": self.classes, "words": len(self.words) + 1}


def open_trees(data: Data) -> TreeCorpus:
    """The corpus of a dataset; raises Refused if it is missing, or not what the recipe says."""
    corpus = read_corpus(data, lambda root: read_tree_corpus(root, lowercase=data.lowercase))
    check_counts(data, corpus.counts)
    return corpus


@cache
def read_tree_corpus(root: Path, *, lowercase: bool) -> TreeCorpus:
    """The corpus in this folder, read once by each process; only a test set may be missing.

    Raises OSError for a missing file, and ValueError with file and line for a broken one.
    """
    texts = {
        name: list(read_trees(root / file))
        for name, file in FILES.items()
        if name != "test" or (root / file).exists()
    }
    if lowercase:
        texts = {
            name: [tree._replace(words=[word.lower() for word in tree.words]) for tree in trees]
            for name, trees in texts.items()
        }
    # Sorted by code points, which no language setting of a machine changes.
    words = sorted({word for tree in texts["train"] for word in tree.words if word})
    numbers = {"": INNER} | {word: number for number, word in enumerate(words, UNKNOWN + 1)}
    labels = (label for trees in texts.values() for tree in trees for label in tree.labels)
    sets = {name: _numbered(texts.get(name, ()), numbers) for name in FILES}
    return TreeCorpus(sets, tuple(words), max(labels, default=-1) + 1)


def _numbered(trees: Sequence[Tree], numbers: dict[str, int]) -> TreeSet:
    return TreeSet(
        _array(numbers.get(word, UNKNOWN) for tree in trees for word in tree.words),
        _array(place for tree in trees for place in tree.left),
        _array(place for tree in trees for place in tree.right),
        _array(label for tree in trees for label in tree.labels),
        _array(len(tree.labels) for tree in trees),
    )


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file in turn. Raises ValueError with file and line for what is none."""
    for number, line in enumerate(read_lines(path), 1):
        if line.strip(" "):
            try:
                yield parse(line)
            except ValueError as error:
                raise ValueError(f"{path.name}, line {number}, {error}") from None


def parse(line: str) -> Tree:
    """The tree of a line; raises ValueError, with the end of a sentence, for what is none.

    >>> parse("(3 (2 not) (1 bad))")
    Tree(words=['not', 'bad', ''], left=[-1, -1, 0], right=[-1, -1, 1], labels=[2, 1, 3])
    """
    tree = Tree([], [], [], [])
    # What each open bracket has so far: a label, then a word or the places of two nodes.
    opened: list[list[Any]] = [[]]
    # Only at this space: a word may have another one in it.
    for token in re.findall("[()]|[^() ]+", line):
        if token == "(":
            opened.append([])
        elif token == ")" and len(opened) > 1:
            node = opened.pop()
            word, left, right = "", INNER, INNER
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


def _array(values: Iterator[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)
