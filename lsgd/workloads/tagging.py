"""Sequence tagging: a bidirectional LSTM gives each word of a sentence a tag, alone or below a CRF
(Lample et al. 2016), and what counts is the spans that the tags make.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.inputs import Inputs
from lsgd.models import DTYPES, initialise
from lsgd.models.tagger import TaggedBatch, Tagger
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import Pass
from lsgd.text.conll import TaggedCorpus, open_tagged
from lsgd.text.made_up import made_up_sentences
from lsgd.text.spans import SpanCounts
from lsgd.workloads import Part, evaluation_passes
from lsgd.workloads.sentences import SentenceInputs


class Tagging:
    """The workload. An example is a sentence, and weighs as many words as it has."""

    metric = METRICS["f1_error"]
    counts = ("tokens", "right_tokens", "spans", "found_spans", "right_spans")

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.dtype = DTYPES[recipe.precision]
        self.sets = recipe.text_sets
        self._order: tuple[int, NDArray[np.int64]] | None = None

    @cached_property
    def corpus(self) -> TaggedCorpus:
        """The recipe's sentences; raises Refused if these are missing or not the recipe's."""
        data = self.recipe.data
        if self.recipe.inputs.loader == "synthetic":
            counts = {"train": data.train_examples, "val": data.val_examples}
            return made_up_sentences(
                counts | {"test": data.test_examples},
                words=data.words,
                classes=data.classes,
                seed=self.recipe.seed,
            )
        return open_tagged(data)

    @cached_property
    def spans(self) -> SpanCounts:
        """The rules by which tags make spans."""
        return SpanCounts(self.corpus.tags, self.device)

    @property
    def weights(self) -> NDArray[np.int64] | None:
        """The words of each training sentence."""
        return self.corpus.sets["train"].lengths

    def network(self) -> nn.Module:
        """The recipe's tagger, in its precision."""
        data, model = self.recipe.data, self.recipe.model
        tagger = Tagger(
            data.words,
            data.classes,
            embedding=model.embedding,
            width=model.width,
            crf=model.name == "bilstm_crf",
        )
        initialise(tagger, last_gamma=0, seed=self.recipe.seed)
        return tagger.to(self.dtype)

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """Nothing: a sentence is read from its beginning."""
        return ()

    def inputs(self) -> SentenceInputs:
        """The loader of the sentences."""
        return SentenceInputs(self.corpus, self.recipe)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The permutation of all training sentences that the epoch goes through."""
        # Kept, since every checkpoint asks for it.
        if self._order is None or self._order[0] != epoch:
            recipe, lengths = self.recipe, self.corpus.sets["train"].lengths
            if recipe.data.order == "by_length":
                order = sampler.length_order(
                    lengths, recipe.batch_size, seed=recipe.seed, epoch=epoch
                )
            else:
                order = sampler.epoch_order(len(lengths), seed=recipe.seed, epoch=epoch)
            self._order = epoch, order
        return self._order[1]

    def evaluation(self, split: str, rank: int, world_size: int) -> list[Pass]:
        """Every so many-th of the passes into which the sentences fall, sorted by length."""
        ids = np.argsort(self.corpus.sets[split].lengths, kind="stable")
        return evaluation_passes(ids, self.recipe.val_batch, split, rank, world_size)

    def evaluated(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """The model is evaluated as it is trained."""
        return nullcontext()

    def loss(self, model: nn.Module, batch: TaggedBatch, each: Pass) -> tuple[Tensor, Tensor]:
        """The negative log-likelihood of all tags, how many words have the right one, and how many
        spans there are, were found, and are right."""
        assert isinstance(model, Tagger)
        batch = batch.to(self.device, self.dtype)
        scores = model(batch).to(self.dtype)
        # Summed, not averaged: the step divides by the words of all processes.
        loss = model.loss(scores, batch)
        guessed = model.best(scores.detach(), batch)
        right = (guessed == batch.tags).sum()
        spans = self.spans.count(batch.tags, guessed, batch.sentences)
        return loss, torch.stack((torch.full_like(right, len(guessed)), right, *spans))

    def rates(self, loss: float, counts: list[int]) -> dict[str, float]:
        """100 less the F1 of the spans, as conlleval has it, and the share of words with a wrong
        tag, in percent."""
        tokens, right_tokens, spans, found, right = counts
        # F1, the harmonic mean of right / found and right / spans, is 0 if there is none.
        f1 = 200 * right / (spans + found) if right else 0.0
        return {"f1_error": 100 - f1, "token_error": 100 * (tokens - right_tokens) / tokens}
