"""A language model on a text: what word comes next (Zaremba et al. 2014).

The training text is cut into k n streams of equal length, one beside the other, and each stream
into windows of T tokens. An example is a window of a stream, numbered `window * k n + stream`, and
the order of an epoch is that of the numbers: worker w reads the streams [w n, (w + 1) n), window
after window, and the state that a window leaves is where the next one of its stream begins.

Two means are kept apart. The loss is summed over a window and its gradient is the mean over the
windows of a step, as in the paper's program, so that its lr means what it meant there; the loss
that is reported is the mean over tokens.
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
from lsgd.inputs import Inputs
from lsgd.models import DTYPES
from lsgd.models.lstm import WordLSTM, start_uniformly
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import Pass
from lsgd.text.made_up import made_up_texts
from lsgd.text.ptb import Texts, open_texts
from lsgd.workloads import Part, Sum

BEHIND = -100
"""The target behind the end of a stream, which F.cross_entropy leaves out."""
HIGHEST = 700.0
"""A loss whose perplexity is still a number."""


class Hidden:
    """A part: the state, hidden and cell, of each stream that the workers of this process read.

    `values` has the shape (2, layers, streams of this process, width).
    """

    name = "hidden"

    def __init__(self, model: nn.Module, hosted: range, recipe: Recipe) -> None:
        self.streams = recipe.batch_size
        self.first = hosted.start * recipe.worker_batch
        count = len(hosted) * recipe.worker_batch
        self.own = slice(self.first, self.first + count)
        self.values = zero_state(model, recipe, count)
        self.seen = self.values.new_empty(0)

    def of(self, each: Pass) -> NDArray[np.int64]:
        """The places of a pass's streams in `values`: not in order, as its workers take turns."""
        return each.examples % self.streams - self.first

    def start_pass(self, each: Pass) -> None:
        """An epoch begins at the beginning of the text, and with a state of zeros."""
        if each.step == 0:
            self.values[:, :, self.of(each)] = 0

    def end_step(self, active_workers: int) -> None:
        """Nothing: each pass has left its own streams' state."""

    def settle(self, sum_: Sum) -> None:
        """Nothing: an evaluation has states of its own."""

    def state(self, sum_: Sum) -> dict[str, Tensor]:
        """The state of all streams, shape (2, layers, k n, width)."""
        _, layers, _, width = self.values.shape
        values = self.values.new_zeros(2, layers, self.streams, width)
        values[:, :, self.own] = self.values
        sum_(values)
        return {"values": values}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up that of the own streams."""
        self.values.copy_(state["values"][:, :, self.own])


class Language:
    """The workload. A step takes one window of every stream."""

    metric = METRICS["perplexity"]
    counts = ("tokens",)
    weights = None

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.sets = recipe.text_sets
        self.dtype = DTYPES[recipe.precision]
        self.carried = torch.empty(0)
        """The state that a pass of an evaluation leaves for the next one."""

    def network(self) -> nn.Module:
        """The recipe's network, in its precision."""
        chosen = self.recipe.model
        model = WordLSTM(
            self.recipe.data.classes,
            embedding=chosen.embedding,
            width=chosen.width,
            layers=chosen.layers,
        )
        start_uniformly(model, seed=self.recipe.seed)
        return model.to(self.dtype)

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """The state of the hosted workers' streams, which `loss` reads and writes too."""
        self.hidden = Hidden(model, hosted, self.recipe)
        return (self.hidden,)

    def inputs(self) -> "TextInputs":
        """The windows of the recipe's texts; raises Refused if these are missing or others."""
        recipe, data = self.recipe, self.recipe.data
        if recipe.inputs.loader == "synthetic":
            counts = {split: getattr(data, f"{split}_examples") for split in ("train", *self.sets)}
            texts = made_up_texts(counts, classes=data.classes, seed=recipe.seed)
            return TextInputs(recipe, texts, "a made-up text")
        return TextInputs(self.recipe, open_texts(data), "in memory")

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Window after window; of each window all streams."""
        return np.arange(self.recipe.train_examples)

    def evaluation(self, split: str, rank: int, world_size: int) -> list[Pass]:
        """Window after window of this process's share of the set's streams."""
        streams = self.recipe.data.eval_streams
        own = sampler.share(streams, world_size, rank)
        longest = len(evaluated(self.recipe, split, 0))
        windows = -(-longest // self.recipe.data.window) if own else 0
        return [Pass(None, t * streams + np.array(own), range(0), t, split) for t in range(windows)]

    def evaluated(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """The model is evaluated as it is trained."""
        return nullcontext()

    def loss(self, model: nn.Module, batch: Tensor, each: Pass) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the tokens, and their number."""
        batch = batch.to(self.device, torch.int64, non_blocking=True)
        windows, targets = batch[:-1].clamp(min=0), batch[1:]
        if each.split == "train":
            own = self.hidden.of(each)
            logits, self.hidden.values[:, :, own] = model(windows, self.hidden.values[:, :, own])
        else:
            if each.step == 0:
                self.carried = zero_state(model, self.recipe, windows.shape[1])
            logits, self.carried = model(windows, self.carried)
        loss = F.cross_entropy(
            logits.flatten(0, 1).to(self.dtype),
            targets.flatten(),
            ignore_index=BEHIND,
            reduction="sum",
        )
        return loss, (targets != BEHIND).sum().view(1)

    def rates(self, loss: float, counts: list[int]) -> dict[str, float]:
        """The perplexity of a token."""
        return {"perplexity": math.exp(min(loss, HIGHEST))}


def zero_state(model: nn.Module, recipe: Recipe, streams: int) -> Tensor:
    """The state at the beginning of so many texts, shape (2, layers, streams, width)."""
    first = next(model.parameters())
    return first.new_zeros(2, recipe.model.layers, streams, recipe.model.width)


def evaluated(recipe: Recipe, split: str, stream: int) -> range:
    """Where a stream of an evaluation set has the tokens that it goes on from: all but the last of
    the text, so that each token behind one is guessed once, whatever the streams."""
    tokens = getattr(recipe.data, f"{split}_examples")
    return sampler.share(tokens - 1, recipe.data.eval_streams, stream)


class TextInputs:
    """The texts in memory, from which every pass takes its windows."""

    def __init__(self, recipe: Recipe, texts: Texts, name: str) -> None:
        self.recipe, self.name = recipe, name
        self.texts = {split: torch.from_numpy(tokens) for split, tokens in texts.sets.items()}

    def train(self, passes: Iterable[Pass]) -> Iterator[Tensor]:
        """The windows of each pass with the token behind each, shape (T + 1, streams)."""
        streams, window = self.recipe.batch_size, self.recipe.data.window
        length = self.recipe.data.train_examples // streams
        places = torch.arange(window + 1)[:, None]
        for each in passes:
            begins = each.examples % streams * length + each.examples // streams * window
            yield self.texts["train"][torch.from_numpy(begins) + places]

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Tensor]:
        """The same of an evaluation set, with BEHIND behind the end of a stream."""
        streams, window = self.recipe.data.eval_streams, self.recipe.data.window
        places = torch.arange(window + 1)[:, None]
        for each in passes:
            own = [evaluated(self.recipe, each.split, number % streams) for number in each.examples]
            ends = torch.tensor([stream.stop for stream in own])
            begins = torch.tensor([stream.start for stream in own]) + each.step * window
            at = begins + places
            tokens = self.texts[each.split][at.minimum(ends)].long()
            yield tokens.masked_fill(at > ends, BEHIND)
