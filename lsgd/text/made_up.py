"""Made-up texts and tagged sentences of a recipe's numbers, to run anything without a corpus."""

from collections.abc import Mapping

import numpy as np

from lsgd.rules import philox
from lsgd.text.conll import OUTSIDE, Sentences, TaggedCorpus
from lsgd.text.ptb import Texts

DRAWN, LENGTHS = 8, 2**32 - 1
"""The last word of the counter, beside those of lsgd.rules, and the second one of lengths."""
MEDIAN, SPREAD, LONGEST = 10, 0.8, 113
"""The lengths of CoNLL-2003's training sentences: median, roughly the standard deviation of their
logarithm, and longest."""


def made_up_texts(counts: Mapping[str, int], *, classes: int, seed: int) -> Texts:
    """Sets of so many tokens each, the same for each seed.

    Some tokens are more frequent than others, and every other one is the number behind the one
    before it, so that there is something to learn.
    """
    sets = {}
    for number, (name, count) in enumerate(counts.items()):
        place = np.arange(count)
        drawn, follows, *_ = philox.uniforms((place, place >> 32, number, DRAWN), key=seed)
        tokens = (classes * drawn**3).astype(np.int32)
        after = np.flatnonzero(follows[1:] < 0.5) + 1
        tokens[after] = (tokens[after - 1] + 1) % classes
        sets[name] = tokens
    return Texts(sets, [f"w{number}" for number in range(classes)])


def made_up_sentences(
    counts: Mapping[str, int], *, words: int, classes: int, seed: int
) -> TaggedCorpus:
    """A corpus of sets with these numbers of sentences, the same for each seed.

    Every fifth word of the vocabulary always has the same tag, of a span, and the others have O, so
    that there is something to learn.
    """
    sets = {}
    for number, (name, count) in enumerate(counts.items()):
        # Two independent uniform numbers make a normal one (Box and Muller 1958).
        radius, angle, *_ = philox.uniforms((np.arange(count), LENGTHS, number, DRAWN), key=seed)
        normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
        lengths = np.rint(MEDIAN * np.exp(SPREAD * normal)).astype(np.int64).clip(1, LONGEST)
        place = np.arange(lengths.sum())
        drawn = philox.uniforms((place, place >> 32, number, DRAWN), key=seed)[0]
        # The lower its number, the more frequent is a word.
        chosen = np.floor(words * drawn**3).astype(np.int64)
        tags = np.where(chosen % 5, 0, chosen // 5 % classes)
        sets[name] = Sentences(chosen, tags, lengths)
    vocabulary = tuple(f"w{number}" for number in range(1, words))
    return TaggedCorpus(sets, vocabulary, (OUTSIDE, *(f"I-{i}" for i in range(1, classes))))
