"""Named spans, counted by the rules of conlleval, CoNLL's own script.

A span begins at a tag with B-, and where the kind changes, also from none; it ends before the next
one, and where the kind changes. So tags in IOB1 and in BIO are read alike, and any tags make spans.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class SpanCounts:
    """The counts of spans among the tags of a vocabulary: O, B-KIND and I-KIND."""

    def __init__(self, tags: Sequence[str], device: torch.device) -> None:
        kinds = sorted({tag[2:] for tag in tags if "-" in tag})
        numbers = [kinds.index(tag[2:]) + 1 if "-" in tag else 0 for tag in tags]
        self.kinds = torch.tensor(numbers, device=device)
        """The kind of each tag, from 1; that of O is 0."""
        self.begin = torch.tensor([tag.startswith("B-") for tag in tags], device=device)
        """Whether each tag begins a span whatever is before it."""

    def count(self, gold: Tensor, guessed: Tensor, sentences: Tensor) -> tuple[Tensor, ...]:
        """The number of spans that the gold tags have, that the guessed tags have, and that both
        have, with the same words and kind; of shape (). All arguments have shape (words,), and
        `sentences` tells one sentence from the next."""
        first = torch.ones_like(sentences, dtype=torch.bool)
        first[1:] = sentences[1:] != sentences[:-1]
        gold_begins, gold_ends, gold_kinds = self._spans(gold, first)
        begins, ends, kinds = self._spans(guessed, first)
        right = gold_begins & begins & (gold_kinds == kinds) & (gold_ends == ends)
        return gold_begins.sum(), begins.sum(), right.sum()

    def _spans(self, tags: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether a span begins at each word, the last word of a span that does, and its kind."""
        kinds = self.kinds[tags]
        changes = first.clone()
        changes[1:] |= kinds[1:] != kinds[:-1]
        changes |= self.begin[tags]
        # A span goes on until something changes.
        stops = torch.ones_like(changes)
        stops[:-1] = changes[1:]
        places = torch.arange(len(tags), device=tags.device)
        ends = places.masked_fill(~stops, len(tags)).flip(0).cummin(0).values.flip(0)
        return changes & (kinds > 0), ends, kinds
