"""The loader of tagged sentences, which lays them out for the network."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from lsgd.models.tagger import Grid, TaggedBatch, make_grid
from lsgd.recipe import Recipe
from lsgd.rules import dropout
from lsgd.rules.sampler import Pass
from lsgd.text.conll import UNKNOWN, Sentences, TaggedCorpus


class SentenceInputs:
    """Sentences that lie in memory; the padding is the recipe's."""

    def __init__(self, corpus: TaggedCorpus, recipe: Recipe) -> None:
        self.name = "made-up sentences" if recipe.inputs.loader == "synthetic" else "in memory"
        self.corpus, self.recipe = corpus, recipe
        self.longest = {
            name: int(each.lengths.max(initial=0)) for name, each in corpus.sets.items()
        }

    def train(self, passes: Iterable[Pass]) -> Iterator[TaggedBatch]:
        """The sentences of each pass, with words and features dropped as the recipe says."""
        for each in passes:
            yield self._batch(each)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[TaggedBatch]:
        """The sentences of each pass, as they are."""
        return self.train(passes)

    def _batch(self, each: Pass) -> TaggedBatch:
        sentences = self.corpus.sets[each.split]
        lengths = sentences.lengths[each.examples]
        number = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(number)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = sentences.begins[each.examples][number] + place
        words, masks = sentences.words[at], None
        model, seed = self.recipe.model, self.recipe.seed
        if each.epoch is not None:
            if rate := self.recipe.data.word_dropout:
                dropped = dropout.dropped_words(
                    each.examples[number], place, rate, seed=seed, epoch=each.epoch
                )
                words = np.where(dropped, UNKNOWN, words)
            if model.dropout:
                features = model.embedding + 2 * model.width
                masks = torch.from_numpy(
                    dropout.feature_masks(
                        each.examples, features, model.dropout, seed=seed, epoch=each.epoch
                    )
                )
        grids = self._grids(lengths, self.longest[each.split])
        return TaggedBatch(
            torch.from_numpy(words),
            torch.from_numpy(sentences.tags[at]),
            torch.from_numpy(number),
            grids,
            masks,
        )

    def _grids(self, lengths: NDArray[np.int64], longest: int) -> list[Grid]:
        match self.recipe.padding:
            case "global":
                return [make_grid(lengths, longest)]
            case "packed":
                return [make_grid(lengths, int(lengths.max()), packed=True)]
            case "per_sentence":
                return [make_grid(own, int(own[0])) for own in np.split(lengths, len(lengths))]
        # In buckets the passes are of like length already.
        return [make_grid(lengths, int(lengths.max()))]


def bucket_passes(sentences: Sentences, passes: list[Pass], size: int) -> list[Pass]:
    """The sentences of these passes of a step in others, of like length and at most `size` each.

    They carry no workers, as the sentences of one may be in several of them.
    """
    if not passes:
        return []
    examples = np.concatenate([each.examples for each in passes])
    examples = examples[np.argsort(sentences.lengths[examples], kind="stable")]
    epoch, step = passes[0].epoch, passes[0].step
    return [
        Pass(epoch, examples[begin : begin + size], range(0), step)
        for begin in range(0, len(examples), size)
    ]
