"""Counts of named spans by the rules of conlleval, CoNLL's own script.

A span begins at a B- tag, or where the kind changes, also from none. It ends before the next span,
or where the kind changes. So tags in IOB1 and in BIO are read equally, and any sequence of tags is
valid.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class SpanCounts:
    """A counter of spans, such as named entities, in sequences of the tags O, B-KIND and I-KIND."""

    def __init__(self, tags: Sequence[str], device: torch.device) -> None:
        kinds = sorted({tag[2:] for tag in tags if "-" in tag})
        numbers = [kinds.index(tag[2:]) + 1 if "-" in tag else 0 for tag in tags]
        self.kinds = torch.tensor(numbers, device=device)
        """The kind of each tag, from 1; 0 for O."""
        self.begin = torch.tensor([tag.startswith("B-") for tag in tags], device=device)
        """Whether each tag begins a span whatever tag is before it."""

    def count(self, gold: Tensor, guessed: Tensor, sentences: Tensor) -> tuple[Tensor, ...]:
        """Count the true, predicted and correct spans of tagged sentences, each of shape ().

        A correct span has the same words and kind in both. All arguments have the shape (words,),
        and `sentences` has a different number for each sentence.
        """
        first = torch.ones_like(sentences, dtype=torch.bool)
        first[1:] = sentences[1:] != sentences[:-1]
        gold_begins, gold_ends, gold_kinds = self._spans(gold, first)
        begins, ends, kinds = self._spans(guessed, first)
        right = gold_begins & begins & (gold_kinds == kinds) & (gold_ends == ends)
        return gold_begins.sum(), begins.sum(), right.sum()

    def _spans(self, tags: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each word whether it begins a span, its span's last word, and its kind."""
        kinds = self.kinds[tags]
        changes = first.clone()
        changes[1:] |= kinds[1:] != kinds[:-1]
        changes |= self.begin[tags]
        # A span continues until the next change.
        stops = torch.ones_like(changes)
        stops[:-1] = changes[1:]
        places = torch.arange(len(tags), device=tags.device)
        ends = places.masked_fill(~stops, len(tags)).flip(0).cummin(0).values.flip(0)
        return changes & (kinds > 0), ends, kinds
