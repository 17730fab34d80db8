"""What is learned: a seam. The page and the step train any workload, and know none.

A second workload is a file here that has what `Workload` asks for, and a case in `open_workload`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.inputs import Inputs
from lsgd.recipe import Recipe
from lsgd.rules import noise
from lsgd.rules.metric import Metric
from lsgd.rules.sampler import Pass
from lsgd.tally import Scores, State

Sum = Callable[[Tensor], None]
"""A function that replaces a tensor, in place, by its sum over the processes."""


class Part(Protocol):
    """What workers or steps carry along, beside parameters and momentum: BN's running statistics,
    a hidden state, an average. It belongs to them, and never to a process.
    """

    name: str
    """Its key in a checkpoint."""
    seen: Tensor
    """What the passes since the last update add up to, on this process, and the next update moves
    it by; empty if it needs nothing of them. Strategies that push it take it out and bring it."""

    def start_pass(self, each: Pass) -> None:
        """A pass of training begins, on this process."""

    def end_step(self, active_workers: int) -> None:
        """The model has been updated by a step in which so many workers of all had examples.

        Called once per update, whatever the passes, also on a process without examples.
        """

    def settle(self, sum_: Sum) -> None:
        """Write into the model what it is evaluated and saved with; all processes call it."""

    def state(self, sum_: Sum) -> dict[str, Tensor]:
        """What all workers carry, the same on every process; all of them call it.

        No run is saved in which it is not finite.
        """

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up this process's part of a state that any number of processes has made."""


class Workload(Protocol):
    """What is learned: network, data, order, loss, and what is counted. It holds no weights."""

    @property
    def metric(self) -> Metric:
        """The rate, of the first evaluation set, that the number of a run is made of."""

    @property
    def counts(self) -> tuple[str, ...]:
        """The names of what `loss` counts: first the things that the reported loss is a mean over,
        and that the speed of training is of, such as images or tokens."""

    @property
    def weights(self) -> NDArray[np.int64] | None:
        """What each training example adds to the divisor of a step's gradient, shape (examples,);
        None means 1 each. Every process knows all of them before any backward pass."""

    @property
    def sets(self) -> tuple[str, ...]:
        """The evaluation sets, by names without `_`: val, of which the metric is, then others that
        stand beside it."""

    def network(self) -> nn.Module:
        """The network on the CPU, with weights that depend on the recipe's seed alone."""

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """What the hosted workers of this process carry along; may be nothing. `loss` may use it,
        so the workload keeps what it has made last."""

    def inputs(self) -> Inputs:
        """The loader of its examples; raises Refused if these are missing or not the recipe's."""

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The order of the examples in an epoch: a function of the recipe's seed and the epoch."""

    def evaluation(self, split: str, rank: int, world_size: int) -> list[Pass]:
        """The passes in which this process evaluates its part of a set, in their order.

        Every example is in a pass of one process. Process 0 has at least as many passes as others.
        """

    def evaluated(self, model: nn.Module, inputs: Inputs) -> AbstractContextManager[None]:
        """A context in which the model, of which `parts` has been asked, is as it is evaluated: by
        other weights or statistics, perhaps. All processes enter it, without gradients."""

    def loss(self, model: nn.Module, batch: Any, each: Pass) -> tuple[Tensor, Tensor]:
        """The loss of a pass summed over what `counts` has first, shape (), and its counts, shape
        (kinds,). In training the step calls it within autocast, if the recipe asks for that."""

    def rates(self, loss: float, counts: list[int]) -> dict[str, float]:
        """What a mean loss and counts come to, by the names in lsgd.rules.metric."""


def open_workload(recipe: Recipe, device: torch.device) -> Workload:
    """The workload of a recipe, whose batches go to this device."""
    match recipe.data.workload:
        case "images":
            from lsgd.workloads.images import Images

            return Images(recipe, device)
        case "language":
            from lsgd.workloads.language import Language

            return Language(recipe, device)
        case "tagging":
            from lsgd.workloads.tagging import Tagging

            return Tagging(recipe, device)
        case "trees":
            from lsgd.workloads.trees import Trees

            return Trees(recipe, device)
    raise ValueError(recipe.data.workload)


def evaluation_passes(
    ids: NDArray[np.int64], size: int, split: str, rank: int, world_size: int
) -> list[Pass]:
    """The passes of a process: a set's examples in this order, `size` at a time, taken in turn.

    A pass is the same on any process, and so is, to the last bit, what comes of it.
    """
    begins = range(0, len(ids), size)[rank::world_size]
    return [
        Pass(None, ids[begin : begin + size], range(0), step, split)
        for step, begin in enumerate(begins)
    ]


def scores(workload: Workload, state: State) -> Scores:
    """What a summed tally of this workload says; it must have seen something."""
    counts = state["counts"].tolist()
    loss = state["loss"].item() / counts[0]
    named = dict(zip(workload.counts, counts, strict=True))
    return Scores(named, {"loss": loss} | workload.rates(loss, counts) | noise.rates(state))
