"""A workload: an LSTM that guesses the next byte of a text, with a hidden state per stream of text.

A text is cut into k n streams, one beside the other, and each stream into windows of T bytes. An
example is a window of a stream, numbered `window * k n + stream`. So the order of an epoch is that
of the numbers, and the sampler gives worker w the streams [w n, (w + 1) n) of window after window.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.comm import Comm
from lsgd.models import DTYPES, initialise
from lsgd.recipe import Recipe
from lsgd.rules import philox
from lsgd.rules.metric import METRICS
from lsgd.rules.sampler import Pass
from lsgd.workloads import Part, Sum

WINDOW, VOCABULARY, LAYERS, WIDTH = 6, 8, 2, 12
VALIDATION = {"val": 1000, "test": 2000}
"""The evaluation sets, and where the text of each begins among all texts that can be drawn."""
PADDING = -100
"""The target behind the end of a stream, which F.cross_entropy leaves out."""


class NextByte(nn.Module):
    """The logits of the next byte at each place of some windows, and the state behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, windows: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Of windows (streams, T) and a state (2, layers, streams, hidden), at the beginning of a
        text None: the logits (streams, T, bytes), and the state that the next windows start with,
        which has no gradient."""
        before = None if state is None else (state[0], state[1])
        seen, after = self.lstm(self.embedding(windows), before)
        return self.output(seen), torch.stack(after).detach()


class Hidden:
    """A part: the state, hidden and cell, of each stream that the workers of this process read."""

    name = "hidden"

    def __init__(self, model: nn.Module, hosted: range, *, workers: int, worker_batch: int) -> None:
        self.streams = workers * worker_batch
        self.first, count = hosted.start * worker_batch, len(hosted) * worker_batch
        self.own = slice(self.first, self.first + count)
        self.values = next(model.parameters()).new_zeros(2, LAYERS, count, WIDTH)

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
        """Nothing: the model is not evaluated with it."""

    def state(self, sum_: Sum) -> dict[str, Tensor]:
        """The state of all streams, shape (2, layers, k n, hidden)."""
        values = self.values.new_zeros(2, LAYERS, self.streams, WIDTH)
        values[:, :, self.own] = self.values
        sum_(values)
        return {"values": values}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up that of the own streams."""
        self.values.copy_(state["values"][:, :, self.own])


class LanguageModel:
    """The workload. A stream's last window is a shorter one, and some end sooner than others."""

    metric = METRICS["perplexity"]
    counts: tuple[str, ...] = ("bytes", "right")
    sets: tuple[str, ...] = tuple(VALIDATION)

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.streams = recipe.batch_size
        windows = recipe.data.train_examples // self.streams
        # Of each stream as many bytes as it has to guess, and one more to begin with.
        self.lengths = windows * WINDOW - np.arange(self.streams) % WINDOW
        places = np.arange(windows)[:, None] * WINDOW
        # A window has as many bytes to guess as are left of its stream, and so has its weight.
        self.weights: NDArray[np.int64] | None = np.minimum(WINDOW, self.lengths - places).ravel()
        self.carried: Tensor | None = None

    def network(self) -> nn.Module:
        """The network, drawn from the seed."""
        model = NextByte()
        initialise(model, last_gamma=0, seed=self.recipe.seed)
        return model.to(DTYPES[self.recipe.precision])

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """The state of the hosted workers' streams, which `loss` reads and writes too."""
        workers, worker_batch = self.recipe.workers, self.recipe.worker_batch
        self.hidden = Hidden(model, hosted, workers=workers, worker_batch=worker_batch)
        return (self.hidden,)

    def inputs(self) -> "Texts":
        """The windows of all texts, which are made up."""
        return Texts(self)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Window after window; of each window all streams."""
        return np.arange(self.recipe.data.train_examples)

    def evaluation(self, split: str, rank: int, world_size: int) -> list[Pass]:
        """The whole text by process 0, window after window: it is one stream."""
        count = self.recipe.data.val_examples if rank == 0 else 0
        return [Pass(None, np.array([i]), range(0), i, split) for i in range(count)]

    def loss(self, model: nn.Module, batch: Tensor, each: Pass) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the bytes, and how many were guessed right."""
        batch = batch.to(self.device)
        windows, targets = batch[:, :-1].clamp(min=0), batch[:, 1:]
        if each.split == "train":
            own = self.hidden.of(each)
            logits, self.hidden.values[:, :, own] = model(windows, self.hidden.values[:, :, own])
        else:
            # An evaluation has a state of its own, which it hands from pass to pass.
            logits, self.carried = model(windows, self.carried if each.step else None)
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum"
        )
        right = (logits.argmax(-1) == targets).sum()
        return loss, torch.stack(((targets != PADDING).sum(), right))

    def rates(self, loss: float, counts: list[int]) -> dict[str, float]:
        """The perplexity of a byte."""
        return {"perplexity": math.exp(loss)}


class Texts:
    """The loader: made-up texts, in which a byte depends on the one before it."""

    name = "made-up texts"

    def __init__(self, workload: LanguageModel) -> None:
        self.workload, self.seed = workload, workload.recipe.seed

    def train(self, passes: Iterable[Pass]) -> Iterator[Tensor]:
        """The windows of each pass and the byte behind, shape (streams, T + 1)."""
        lengths = self.workload.lengths
        for each in passes:
            window, stream = divmod(each.examples[:, None], self.workload.streams)
            place = window * WINDOW + np.arange(WINDOW + 1)
            text = self._text(stream, place)
            yield torch.from_numpy(np.where(place <= lengths[stream], text, PADDING))

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Tensor]:
        """The same of the one stream of an evaluation set."""
        for each in passes:
            place = each.examples[:, None] * WINDOW + np.arange(WINDOW + 1)
            yield torch.from_numpy(self._text(VALIDATION[each.split], place))

    def _text(self, stream: NDArray[np.int64] | int, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes at these places of streams: one of two neighbours of the place in its turn."""
        drawn = philox.words((stream, place, 0, 8), key=self.seed)[0] % 2
        return (place + stream + drawn.astype(np.int64)) % VOCABULARY
