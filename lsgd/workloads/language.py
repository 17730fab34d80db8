"""A language model that predicts the next word of a text (Zaremba et al. 2014).

The training text is cut into k n parallel streams of equal length, and each stream into windows of
T tokens. An example is a window of a stream, with the number `window * k n + stream`, and an epoch
goes through the examples by number: worker w reads the streams [w n, (w + 1) n) window after
window, and the final state of a window is the initial state of the stream's next window.

The gradient and the reported loss have different divisors. The loss is summed over a window and its
gradient is the mean over the windows of a step, as in the paper's program, so that the paper's lr
applies; the reported loss is the mean over tokens.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm import Comm
from lsgd.inputs import ExampleColumns, Inputs
from lsgd.job.device import arrays_to_device, to_device_together
from lsgd.models import DTYPES
from lsgd.models.lstm import LSTMLanguageModel, initialise_uniformly
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import MicroBatch
from lsgd.text.ptb import TextCorpus, open_texts
from lsgd.text.synthetic import synthetic_texts
from lsgd.workloads import CarriedState, Sum

IGNORED_TARGET = -100
"""The target after the end of a stream, which F.cross_entropy ignores."""
MAX_LOSS = 700.0
"""The loss above which the perplexity is capped, since exp of it would overflow."""


class RecurrentState:
    """The carried LSTM state, hidden and cell, of each text stream of this process's workers.

    `values` has the shape (2, layers, streams of this process, width).
    """

    name = "hidden"

    def __init__(self, model: nn.Module, hosted: range, recipe: Recipe) -> None:
        self.streams = recipe.batch_size
        self.first = hosted.start * recipe.worker_batch
        count = len(hosted) * recipe.worker_batch
        self.own = slice(self.first, self.first + count)
        self.values = zero_state(model, recipe, count)
        self.pending_update = self.values.new_empty(0)

    def stream_positions(self, each: MicroBatch) -> NDArray[np.int64]:
        """Return the unsorted positions in `values` of the text streams of a micro-batch."""
        return each.examples % self.streams - self.first

    def start_micro_batch(self, each: MicroBatch) -> None:
        """Reset the LSTM states of a micro-batch's streams to zero at the start of an epoch."""
        if each.step == 0:
            own = arrays_to_device(self.stream_positions(each), self.values.device)
            self.values[:, :, own] = 0

    def end_step(self, active_workers: int) -> None:
        """Do nothing, since each micro-batch has written the LSTM state of its own streams."""

    def write_to_model(self, sum_: Sum) -> None:
        """Do nothing, since an evaluation has LSTM states of its own."""

    def state(self, sum_: Sum) -> dict[str, Tensor]:
        """Return the LSTM state of all processes' streams, shape (2, layers, k n, width)."""
        _, layers, _, width = self.values.shape
        values = self.values.new_zeros(2, layers, self.streams, width)
        values[:, :, self.own] = self.values
        sum_(values)
        return {"values": values}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load the LSTM state of this process's streams from that of all streams."""
        self.values.copy_(state["values"][:, :, self.own])


class LanguageModeling:
    """The language modelling workload, whose step trains on one window of every text stream."""

    metric = METRICS["perplexity"]
    count_names = ("tokens",)
    example_weights = None
    metrics_part = ""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.evaluation_sets = recipe.text_sets
        self.dtype = DTYPES[recipe.precision]
        self.carried = torch.empty(0)
        """The state after the last micro-batch of an evaluation, where the next one starts."""

    def network(self) -> nn.Module:
        """Build the recipe's LSTM language model in its precision."""
        chosen = self.recipe.model
        model = LSTMLanguageModel(
            self.recipe.data.classes,
            embedding=chosen.embedding,
            width=chosen.width,
            layers=chosen.layers,
        )
        initialise_uniformly(model, seed=self.recipe.seed)
        return model.to(self.dtype)

    def carried_states(
        self, model: nn.Module, hosted: range, comm: Comm
    ) -> tuple[CarriedState, ...]:
        """Create the LSTM state of the hosted workers' text streams, which `loss` updates."""
        self.hidden = RecurrentState(model, hosted, self.recipe)
        return (self.hidden,)

    def inputs(self) -> "TextInputs":
        """Open the loader of the recipe's texts, which are read or generated.

        Raises UsageError if the texts are missing or not the recipe's.
        """
        recipe, data = self.recipe, self.recipe.data
        if recipe.inputs.loader == "synthetic":
            counts = {
                split: getattr(data, f"{split}_examples")
                for split in ("train", *self.evaluation_sets)
            }
            texts = synthetic_texts(counts, classes=data.classes, seed=recipe.seed)
            return TextInputs(recipe, texts, "a made-up text")
        return TextInputs(recipe, open_texts(data), "in memory")

    def example_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of an epoch's text windows: window by window, over all streams."""
        return np.arange(self.recipe.train_examples)

    def evaluation_micro_batches(self, split: str, rank: int, world_size: int) -> list[MicroBatch]:
        """Return one micro-batch for each text window of a process's share of a set's streams."""
        streams = self.recipe.data.eval_streams
        own = sampler.contiguous_share(streams, world_size, rank)
        longest = len(evaluation_range(self.recipe, split, 0))
        windows = -(-longest // self.recipe.data.window) if own else 0
        return [
            MicroBatch(None, t * streams + np.array(own), range(0), t, split)
            for t in range(windows)
        ]

    def evaluation_mode(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """Return an empty context, since the language model is evaluated as it is trained."""
        return nullcontext()

    def loss(self, model: nn.Module, batch: Tensor, each: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over a micro-batch's tokens, and the number of tokens."""
        places = (
            [torch.from_numpy(self.hidden.stream_positions(each))] if each.split == "train" else []
        )
        batch, *places = to_device_together([batch.long(), *places], self.device)
        windows, targets = batch[:-1].clamp(min=0), batch[1:]
        if each.split == "train":
            (own,) = places
            logits, self.hidden.values[:, :, own] = model(windows, self.hidden.values[:, :, own])
        else:
            if each.step == 0:
                self.carried = zero_state(model, self.recipe, windows.shape[1])
            logits, self.carried = model(windows, self.carried)
        loss = F.cross_entropy(
            logits.flatten(0, 1).to(self.dtype),
            targets.flatten(),
            ignore_index=IGNORED_TARGET,
            reduction="sum",
        )
        return loss, (targets != IGNORED_TARGET).sum().view(1)

    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Convert a mean loss into the perplexity per token, capped where exp would overflow."""
        return {"perplexity": math.exp(loss if loss < MAX_LOSS else MAX_LOSS)}


def zero_state(model: nn.Module, recipe: Recipe, streams: int) -> Tensor:
    """Return the zero LSTM state of this many text streams, shape (2, layers, streams, width)."""
    first = next(model.parameters())
    return first.new_zeros(2, recipe.model.layers, streams, recipe.model.width)


def evaluation_range(recipe: Recipe, split: str, stream: int) -> range:
    """Return the range of a text stream's input tokens in an evaluation set.

    The streams divide all tokens but the last of the text, so that each next token is predicted
    once, for any number of streams.
    """
    tokens = getattr(recipe.data, f"{split}_examples")
    return sampler.contiguous_share(tokens - 1, recipe.data.eval_streams, stream)


class TextInputs:
    """The loader of language-model texts in memory, which cuts each micro-batch's windows."""

    def __init__(self, recipe: Recipe, texts: TextCorpus, name: str) -> None:
        self.recipe, self.name = recipe, name
        self._columns = texts.columns
        self.texts = {split: torch.from_numpy(tokens) for split, tokens in texts.sets.items()}

    def columns(self) -> ExampleColumns:
        """Return the texts and vocabulary as arrays by name, for comparing copies of them."""
        return self._columns

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Tensor]:
        """Yield the text windows and next tokens of each training micro-batch, (T + 1, streams)."""
        streams, window = self.recipe.batch_size, self.recipe.data.window
        length = self.recipe.data.train_examples // streams
        places = torch.arange(window + 1)[:, None]
        for each in passes:
            begins = each.examples % streams * length + each.examples // streams * window
            yield self.texts["train"][torch.from_numpy(begins) + places]

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Tensor]:
        """Yield the text windows and next tokens of each evaluation micro-batch, as in training.

        Positions after the end of a stream have the token IGNORED_TARGET.
        """
        streams, window = self.recipe.data.eval_streams, self.recipe.data.window
        places = torch.arange(window + 1)[:, None]
        for each in passes:
            own = [
                evaluation_range(self.recipe, each.split, number % streams)
                for number in each.examples
            ]
            ends = torch.tensor([stream.stop for stream in own])
            begins = torch.tensor([stream.start for stream in own]) + each.step * window
            at = begins + places
            tokens = self.texts[each.split][at.minimum(ends)].long()
            yield tokens.masked_fill(at > ends, IGNORED_TARGET)
