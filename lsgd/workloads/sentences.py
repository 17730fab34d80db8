"""The loader of tagged sentences, which lays them out for the network."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.models.tagger import Grid, TaggedBatch, make_grid
from lsgd.recipe import Recipe
from lsgd.rules import dropout
from lsgd.rules.sampler import Pass
from lsgd.text import word_places
from lsgd.text.conll import UNKNOWN, TaggedCorpus

BUCKET = 8
"""The sentences of a bucket. On a CPU, fewer cost more time in the places that they are read at one
after the other than they save in cells; on passes of 64, twice as many are as fast."""


class SentenceInputs:
    """Sentences that lie in memory."""

    def __init__(self, corpus: TaggedCorpus, recipe: Recipe) -> None:
        self.name = "made-up sentences" if recipe.inputs.loader == "synthetic" else "in memory"
        self.corpus, self.recipe = corpus, recipe

    def train(self, passes: Iterable[Pass]) -> Iterator[TaggedBatch]:
        """The sentences of each pass, with words and features dropped as the recipe says."""
        for each in passes:
            yield self._batch(each)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[TaggedBatch]:
        """The sentences of each pass, as they are."""
        return self.train(passes)

    def _batch(self, each: Pass) -> TaggedBatch:
        sentences, examples = self.corpus.sets[each.split], each.examples
        # An evaluation has sentences of like length in a pass, as one bucket.
        buckets = self.recipe.padding == "bucket" and each.split == "train"
        if buckets:
            examples = examples[np.argsort(sentences.lengths[examples], kind="stable")]
        lengths = sentences.lengths[examples]
        number, place = word_places(lengths)
        cells = sentences.begins[examples][number] + place
        words, masks = sentences.words[cells], None
        if each.epoch is not None:
            words = self._words(words, examples[number], place, each.epoch)
            masks = self._masks(examples, each.epoch)
        longest = int(lengths.max())
        grids = chains = [make_grid(lengths, longest)]
        if buckets:
            grids = _grids(lengths, BUCKET)
        match self.recipe.padding:
            case "global":
                grids = chains = [make_grid(lengths, int(sentences.lengths.max()))]
            case "packed":
                grids = [make_grid(lengths, longest, packed=True)]
            case "per_sentence":
                grids = chains = _grids(lengths, 1)
        return TaggedBatch(
            torch.from_numpy(words),
            torch.from_numpy(sentences.tags[cells]),
            torch.from_numpy(number),
            grids,
            chains,
            masks,
        )

    def _words(
        self,
        words: NDArray[np.int64],
        examples: NDArray[np.int64],
        places: NDArray[np.int64],
        epoch: int,
    ) -> NDArray[np.int64]:
        """The words, of which each is at a place of an example, or in their stead unknown ones."""
        rate = self.recipe.data.word_dropout
        if not rate:
            return words
        dropped = dropout.dropped_words(examples, places, rate, seed=self.recipe.seed, epoch=epoch)
        return np.where(dropped, UNKNOWN, words)

    def _masks(self, examples: NDArray[np.int64], epoch: int) -> Tensor | None:
        """The masks of these sentences' features, as TaggedBatch has them."""
        model = self.recipe.model
        if not model.dropout:
            return None
        features = model.embedding + 2 * model.width
        masks = dropout.feature_masks(
            examples, features, model.dropout, seed=self.recipe.seed, epoch=epoch
        )
        return torch.from_numpy(masks)


def _grids(lengths: NDArray[np.int64], size: int) -> list[Grid]:
    """The grids of so many sentences each, or fewer in the last, no longer than the longest."""
    cuts = range(size, len(lengths), size)
    return [make_grid(own, int(own.max())) for own in np.split(lengths, cuts)]
