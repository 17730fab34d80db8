"""Sequence tagging by a bidirectional LSTM, with or without a CRF (Lample et al. 2016).

The metric counts the spans that the predicted tags form.
"""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.models import initialise
from lsgd.models.tagger import TaggedBatch, Tagger
from lsgd.rules import sampler
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import MicroBatch
from lsgd.text.conll import OUTSIDE, TaggedCorpus, open_tagged_corpus
from lsgd.text.spans import SpanCounts
from lsgd.text.synthetic import synthetic_sentences
from lsgd.workloads import is_finite_output
from lsgd.workloads.sentence_inputs import SentenceInputs
from lsgd.workloads.sentences import SentenceWorkload


class SequenceTagging(SentenceWorkload[TaggedCorpus]):
    """The sequence tagging workload, which tags each word of a sentence and scores spans.

    An example is a sentence, weighted by its number of words.
    """

    metric = METRICS["f1_error"]
    count_names = ("tokens", "right_tokens", "spans", "found_spans", "right_spans")
    open_corpus = open_tagged_corpus
    synthetic_corpus = synthetic_sentences

    @cached_property
    def spans(self) -> SpanCounts:
        """The counter of true, predicted and correct spans for the tags of the corpus."""
        return SpanCounts(self.corpus.tags, self.device)

    @property
    def example_weights(self) -> NDArray[np.int64] | None:
        """The number of words of each training sentence, its weight in the gradient's divisor."""
        return self.corpus.sets["train"].lengths

    def network(self) -> nn.Module:
        """Build the recipe's bidirectional LSTM tagger in its precision."""
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

    def inputs(self) -> SentenceInputs:
        """Create the loader of the recipe's tagged sentences."""
        return SentenceInputs(self.corpus, self.recipe)

    def _draw_order(self, epoch: int) -> NDArray[np.int64]:
        recipe, lengths = self.recipe, self.corpus.sets["train"].lengths
        if recipe.data.order == "by_length":
            return sampler.length_order(lengths, recipe.batch_size, seed=recipe.seed, epoch=epoch)
        return super()._draw_order(epoch)

    def loss(self, model: nn.Module, batch: TaggedBatch, each: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the summed negative log-likelihood of a micro-batch's tags, and its counts.

        The counts are those of words, correctly tagged words, true spans, predicted spans and
        correct spans.
        """
        assert isinstance(model, Tagger)
        batch = batch.to(self.device, self.dtype)
        scores = model(batch).to(self.dtype)
        # Summed, not averaged: the step divides by the words of all processes.
        loss = model.loss(scores, batch)
        guessed = model.decode(scores.detach(), batch)
        is_right = guessed == batch.tags
        if each.split != "train":
            # A sentence with a non-finite score counts as having no correct word and no span.
            answers = is_finite_output(scores)
            if model.crf is not None:
                answers &= is_finite_output(
                    torch.cat([p.flatten() for p in model.crf.parameters()])[None]
                )
            failed = torch.isin(batch.sentences, batch.sentences[~answers])
            is_right &= ~failed
            guessed = guessed.masked_fill(failed, self.corpus.tags.index(OUTSIDE))
        right = is_right.sum()
        spans = self.spans.count(batch.tags, guessed, batch.sentences)
        return loss, torch.stack((torch.full_like(right, len(guessed)), right, *spans))

    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Convert counts of spans and tags into 100 minus F1, and the percentage of wrong tags."""
        tokens, right_tokens, spans, found, right = counts
        # F1, the harmonic mean of right / found and right / spans, is 0 if no span is right.
        f1 = 200 * right / (spans + found) if right else 0.0
        return {"f1_error": 100 - f1, "token_error": 100 * (tokens - right_tokens) / tokens}
