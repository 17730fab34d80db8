"""Training steps on FakeTensors, which have shapes and no values, to count operators and bytes.

The step is lsgd's own, with the recipe's network, optimizer and reducer, in eager mode.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lsgd.comm.single import SingleComm
from lsgd.job.device import restore_process_settings
from lsgd.learner import Learner, without_tf32
from lsgd.recipe import InputsSettings, Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy import StepTask

NOT_FAKED = (torch.ops.aten._fused_sgd_.default, torch.ops.aten._fused_adagrad_.default)
"""Operators without a result that torch does not implement on fake tensors."""


class OperatorCounter(TorchDispatchMode):
    """A torch dispatch mode that passes each operator call to `record_operator` of a subclass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch operator and record it; return 0 where the host reads a tensor's value."""
        if function is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].dtype.is_floating_point else 0
        kwargs = kwargs or {}
        # Of these operators torch would make real tensors of the same sizes, and compute with them.
        if function in NOT_FAKED and isinstance(args[0][0], FakeTensor):
            result = None
        else:
            result = function(*args, **kwargs)
        self.record_operator(function, args, kwargs, result)
        return result

    def record_operator(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record a call of a torch operator, with its arguments and its result."""
        raise NotImplementedError


def storage_address(tensor: Tensor) -> int:
    """Return the address that identifies the storage of a tensor, also a fake one."""
    address: int = tensor.untyped_storage()._cdata
    return address


class _FirstOf(SingleComm):
    """A Comm of rank 0 of several without the other ranks, whose all-reduces do nothing."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size


def fake_learner(recipe: Recipe, world_size: int) -> Learner:
    """Build the learner of rank 0 on fake tensors, without compilers, apex, tf32 and the dataset.

    It has to be called within `fake_tensor_mode`.
    """
    eager = replace(
        without_tf32(recipe),
        workers_per_pass=1,
        compile=False,
        cuda_graphs=False,
        inputs=InputsSettings(loader="synthetic"),
        optim=replace(recipe.optim, fused="torch"),
    )
    return Learner(eager, _FirstOf(world_size), torch.device("cpu"))


def count_micro_batches(learner: Learner, workers: int) -> int:
    """Return into how many micro-batches of `workers` workers a process divides its workers."""
    return -(-len(learner.strategy.hosted) // workers)


def fake_task(learner: Learner, workers: int, most: int) -> StepTask:
    """Return the task of a made-up training step, in micro-batches of `workers` workers each.

    It has the micro-batches that all hosted workers need, but at most `most`, and all have one
    size.
    """
    passes = min(most, count_micro_batches(learner, workers))
    examples = np.arange(workers * learner.recipe.worker_batch)
    each = MicroBatch(0, examples, range(workers))
    return StepTask(0, len(examples) * passes, workers * passes, [each] * passes)


def fake_batches(recipe: Recipe, passes: Sequence[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield fake images and labels in the recipe's shape for each micro-batch."""
    data = recipe.data
    for each in passes:
        count = len(each.examples)
        shape = (count, data.channels, data.image_size, data.image_size)
        yield torch.empty(shape), torch.zeros(count, dtype=torch.int64)


@contextmanager
def fake_tensor_mode(counter: OperatorCounter) -> Iterator[None]:
    """Make all tensors FakeTensors, without values, and record operators within this context."""
    before = nn.Module._apply
    nn.Module._apply = _apply  # type: ignore[method-assign]
    try:
        with restore_process_settings(), FakeTensorMode(allow_non_fake_inputs=True), counter:
            yield
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]


def _apply(module: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
    """Convert a module's tensors as nn.Module._apply does, but into new parameters and buffers.

    It replaces nn.Module._apply, which swaps the contents of fake parameters, and fails while
    torch's own tables hold weak references to them.
    """
    for child in module.children() if recurse else ():
        child._apply(change)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                changed = change(parameter)
            if changed is not parameter:
                module._parameters[name] = nn.Parameter(changed, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = change(buffer)
    return module
