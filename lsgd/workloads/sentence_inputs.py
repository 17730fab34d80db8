"""A loader of tagged sentences, which pads or packs them for the network."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.inputs import ExampleColumns, Inputs
from lsgd.models.tagger import PaddedGrid, TaggedBatch, make_grid
from lsgd.recipe import Recipe
from lsgd.rules import sentence_dropout
from lsgd.rules.sampler import MicroBatch
from lsgd.text import word_places
from lsgd.text.conll import UNKNOWN, TaggedCorpus

BUCKET_SIZE = 8
"""The number of sentences in a bucket of similar lengths.

On a CPU, smaller buckets lose more time to additional time steps than they save in padding; on
micro-batches of 64, buckets of 16 are as fast.
"""


class SentenceInputs(Inputs):
    """The loader of tagged sentences in memory, which makes padded or packed batches."""

    def __init__(self, corpus: TaggedCorpus, recipe: Recipe) -> None:
        self.name = "made-up sentences" if recipe.inputs.loader == "synthetic" else "in memory"
        self.corpus, self.recipe = corpus, recipe

    def columns(self) -> ExampleColumns:
        """Return the whole corpus of tagged sentences as arrays by name, for comparing copies."""
        return self.corpus.columns

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[TaggedBatch]:
        """Yield the batch of tagged sentences of each micro-batch, with dropout in training."""
        return map(self._batch, passes)

    def _batch(self, each: MicroBatch) -> TaggedBatch:
        sentences, examples = self.corpus.sets[each.split], each.examples
        # An evaluation's micro-batch has sentences of similar length and is a single bucket.
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
            grids = _grids(lengths, BUCKET_SIZE)
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
        """Apply word dropout: replace random words by UNKNOWN, at the recipe's rate.

        `examples` and `places` have the sentence and the position of each word.
        """
        rate = self.recipe.data.word_dropout
        if not rate:
            return words
        dropped = sentence_dropout.token_drop_mask(
            examples, places, rate, seed=self.recipe.seed, epoch=epoch
        )
        return np.where(dropped, UNKNOWN, words)

    def _masks(self, examples: NDArray[np.int64], epoch: int) -> Tensor | None:
        """Draw the dropout factors of these sentences' features; None without dropout."""
        model = self.recipe.model
        if not model.dropout:
            return None
        features = model.embedding + 2 * model.width
        masks = sentence_dropout.feature_dropout_factors(
            examples, features, model.dropout, seed=self.recipe.seed, epoch=epoch
        )
        return torch.from_numpy(masks)


def _grids(lengths: NDArray[np.int64], size: int) -> list[PaddedGrid]:
    """Build padded grids of `size` sentences each, as long as the longest sentence of the grid."""
    cuts = range(size, len(lengths), size)
    return [make_grid(own, int(own.max())) for own in np.split(lengths, cuts)]
