"""Estimates of the memory of a training step, counted on FakeTensors.

The storages of each operator's results count until they are freed. Memory that kernels allocate and
free within an operator, such as cuDNN's workspace, is not counted.
"""

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from lsgd.learner import Learner
from lsgd.profile.fake_steps import (
    OperatorCounter,
    fake_batches,
    fake_learner,
    fake_task,
    fake_tensor_mode,
    storage_address,
)
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce


@dataclass(frozen=True)
class StepMemory:
    """The peak memory of a training step on one process in bytes, by category."""

    parameters: int
    """The network's parameters and buffers."""
    gradients: int
    """Gradients that are not in a bucket."""
    buckets: int
    """The buffers in which gradients are accumulated and all-reduced."""
    optimizer: int
    """The optimizer's state of each parameter, such as momentum."""
    activations: int
    """All others: batch, activations for the backward pass, carried state, temporary tensors."""

    @property
    def total(self) -> int:
        """The peak memory of the training step in bytes, over all categories."""
        return sum(self.by_category.values())

    @property
    def by_category(self) -> dict[str, int]:
        """The bytes of peak memory by name of their category, such as gradients."""
        return asdict(self)


class LiveStorages(OperatorCounter):
    """A counter of the bytes of live tensor storages that operators have allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self._made = 0
        self._held: dict[int, tuple[int, int, weakref.ref[Any]]] = {}
        """The number and the bytes of each live storage, by its address."""
        self._at_peak: dict[int, int] = {}
        """The bytes of each storage that was live at the peak, by its number."""

    def record_operator(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count the storages of an operator's result tensors as live until they are freed."""
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._note(each)

    def reset_peak(self) -> None:
        """Reset the recorded peak of memory to 0."""
        self.peak, self._at_peak = 0, {}

    def update_peak(self) -> None:
        """Record the live storages as the peak if their bytes are the highest so far."""
        # Called when a storage is freed and not when one is allocated: a peak ends with a release.
        if self.live > self.peak:
            self.peak = self.live
            self._at_peak = {number: size for number, size, _ in self._held.values()}

    def at_peak(self, tensors: Iterable[object]) -> int:
        """Return how many bytes the storages of these tensors had at the peak of memory."""
        addresses = {storage_address(each) for each in tensors if isinstance(each, Tensor)}
        numbers = {self._held[address][0] for address in addresses if address in self._held}
        return sum(self._at_peak.get(number, 0) for number in numbers)

    def _note(self, tensor: Tensor) -> None:
        storage, address = tensor.untyped_storage(), storage_address(tensor)
        if address not in self._held:
            self._made += 1
            self.live += storage.nbytes()
            gone = weakref.ref(storage, partial(self._forget, address))
            self._held[address] = self._made, storage.nbytes(), gone

    def _forget(self, address: int, _: object) -> None:
        self.update_peak()
        _, size, _ = self._held.pop(address)
        self.live -= size


def max_workers_per_micro_batch(recipe: Recipe, memory: float) -> int:
    """Estimate for how many workers a micro-batch fits into a step's limit of `memory` bytes.

    It extrapolates linearly from micro-batches of one and of two workers; 0 if not even one fits.
    """
    one, two = (memory.total for memory in count_step(recipe, [1, 2]).values())
    return max(0, 1 + int((memory - one) // (two - one)))


def count_step(
    recipe: Recipe, workers_per_pass: Sequence[int], *, world_size: int = 1
) -> dict[int, StepMemory]:
    """Count rank 0's peak bytes in a training step for each number of workers per micro-batch."""
    storages = LiveStorages()
    with fake_tensor_mode(storages):
        learner = fake_learner(recipe, world_size)
        return {
            workers: _count(learner, storages, workers, partial(fake_batches, recipe))
            for workers in workers_per_pass
        }


def _count(learner: Learner, storages: LiveStorages, workers: int, batches: Any) -> StepMemory:
    strategy = learner.strategy
    # A third micro-batch needs no more memory than the second.
    task = fake_task(learner, workers, most=2)
    assert isinstance(strategy, AllReduce)
    if not strategy.next_step:  # the first step creates the optimizer's state, of any batch
        first = fake_task(learner, workers, most=1)
        train_step(learner, first, batches(first.micro_batches))
    storages.reset_peak()
    train_step(learner, task, batches(task.micro_batches))
    storages.update_peak()
    model, flat = learner.model, [bucket.flat for bucket in strategy.reducer.buckets]
    parts = {
        "parameters": storages.at_peak([*model.parameters(), *model.buffers()]),
        "buckets": storages.at_peak(flat),
        "optimizer": storages.at_peak(tree_leaves([*strategy.optimizer.state.values()])),
    }
    # With several micro-batches a gradient is a view of a bucket.
    gradients = storages.at_peak([*flat, *(each.grad for each in model.parameters())])
    parts["gradients"] = gradients - parts["buckets"]
    return StepMemory(**parts, activations=storages.peak - sum(parts.values()))
