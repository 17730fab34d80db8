"""Generators of synthetic texts, tagged sentences and trees, to run a recipe without its corpus."""

from collections.abc import Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox
from lsgd.text.conll import OUTSIDE, Sentences, TaggedCorpus
from lsgd.text.ptb import TextCorpus
from lsgd.text.sst import ABSENT, TreeCorpus, TreeSet

DRAWN, LENGTHS = 8, 2**32 - 1
"""The last number of the Philox counter, unused by lsgd.rules, and the second one for lengths."""
SENTENCES, TREES = (10, 0.8, 113), (18, 0.55, 52)
"""The length distributions of the training sentences of CoNLL-2003 and of SST.

Each is the median, the approximate standard deviation of the logarithm, and the maximum.
"""


def synthetic_texts(counts: Mapping[str, int], *, classes: int, seed: int) -> TextCorpus:
    """Generate a random text with this number of tokens for each set, determined by the seed.

    Token frequencies differ, and a quarter of the tokens, at random places, have the number of the
    token before them plus one, so that a model can learn something.
    """
    sets = {}
    for number, (name, count) in enumerate(counts.items()):
        place = np.arange(count)
        drawn, follows, *_ = philox.uniforms((place, place >> 32, number, DRAWN), key=seed)
        tokens = (classes * drawn**3).astype(np.int32)
        after = np.flatnonzero(follows[1:] < 0.5) + 1
        tokens[after] = (tokens[after - 1] + 1) % classes
        sets[name] = tokens
    return TextCorpus(sets, [f"w{number}" for number in range(classes)])


def synthetic_sentences(
    counts: Mapping[str, int], *, words: int, classes: int, seed: int
) -> TaggedCorpus:
    """Generate a tagged corpus with this number of sentences in each set, determined by the seed.

    Every fifth word of the vocabulary always has the same tag of a span and the others have O, so
    that a model can learn something.
    """
    sets = {}
    for number, (name, count) in enumerate(counts.items()):
        lengths = _lengths(count, number, SENTENCES, seed)
        chosen, _ = _words(int(lengths.sum()), number, words, seed)
        tags = np.where(chosen % 5, 0, chosen // 5 % classes)
        sets[name] = Sentences(chosen, tags, lengths)
    vocabulary = tuple(f"w{number}" for number in range(1, words))
    return TaggedCorpus(sets, vocabulary, (OUTSIDE, *(f"I-{i}" for i in range(1, classes))))


def synthetic_trees(
    counts: Mapping[str, int], *, words: int, classes: int, seed: int
) -> TreeCorpus:
    """Generate a tree corpus with this number of trees in each set, determined by the seed.

    A word always has the same label, and a node the mean of its children's labels, so that a model
    can learn something. A tree is built bottom up: two random neighbours are joined until one node
    is left.
    """
    sets = {}
    for number, (name, count) in enumerate(counts.items()):
        lengths = _lengths(count, number, TREES, seed)
        chosen, drawn = _words(int(lengths.sum()), number, words, seed)
        trees = [
            _joined(own, joins, classes)
            for own, joins in (
                (chosen[end - length : end].tolist(), drawn[end - length + 1 : end].tolist())
                for end, length in zip(np.cumsum(lengths), lengths, strict=True)
            )
        ]
        nodes, left, right, labels = (
            np.array([*chain(*(tree[column] for tree in trees))], np.int64) for column in range(4)
        )
        sets[name] = TreeSet(nodes, left, right, labels, 2 * lengths - 1)
    return TreeCorpus(sets, tuple(f"w{number}" for number in range(1, words)), classes)


def _joined(words: list[int], drawn: list[float], classes: int) -> tuple[list[int], ...]:
    """Build a random binary tree over these words; return words, children and labels of its nodes.

    `drawn` has a number in [0, 1) for each join, which selects the neighbours.
    """
    leaves = [ABSENT] * len(words)
    left, right, labels = [*leaves], [*leaves], [word % classes for word in words]
    nodes = [*range(len(words))]
    for draw in drawn:
        at = int(draw * (len(nodes) - 1))
        one, other = nodes[at : at + 2]
        nodes[at : at + 2] = [len(labels)]
        left.append(one)
        right.append(other)
        labels.append((labels[one] + labels[other] + 1) // 2)
    return words + [ABSENT] * len(drawn), left, right, labels


def _lengths(count: int, number: int, kind: tuple[int, float, int], seed: int) -> NDArray[np.int64]:
    """Draw the lengths of a set's sentences from a clipped log-normal distribution, (count,)."""
    median, spread, longest = kind
    # The Box-Muller transform: two independent uniform numbers give a normal one (Box and Muller
    # 1958).
    radius, angle, *_ = philox.uniforms((np.arange(count), LENGTHS, number, DRAWN), key=seed)
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    lengths: NDArray[np.int64] = np.rint(median * np.exp(spread * normal)).astype(np.int64)
    return lengths.clip(1, longest)


def _words(
    count: int, number: int, words: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw random word numbers for a set, low ones most often, and a uniform number for each.

    The uniform numbers are in [0, 1); both arrays have the shape (count,).
    """
    place = np.arange(count)
    drawn, beside, *_ = philox.uniforms((place, place >> 32, number, DRAWN), key=seed)
    return np.floor(words * drawn**3).astype(np.int64), beside
