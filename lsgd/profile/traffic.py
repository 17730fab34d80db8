"""The memory traffic and floating-point operations of a training step, operator by operator.

The count assumes that each operator reads each of its tensors once and writes each result once, one
operator after the other: no device needs less, and few kernels reach it. An operator with sums,
such as BN, has to read its images twice; here it reads them once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from lsgd.models import AUTOCAST_DTYPES, make_network
from lsgd.profile.fake_steps import (
    OperatorCounter,
    count_micro_batches,
    fake_batches,
    fake_learner,
    fake_task,
    fake_tensor_mode,
    storage_address,
)
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.rules.sampler import MicroBatch
from lsgd.run.utilization import flop_counter
from lsgd.step import train_step

FREE_OPERATORS = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view",
    "lift_fresh", "detach", "alias", "resize_",
}  # fmt: skip
"""Operators that neither read nor write values, in addition to views."""
FLOPS = flop_counter().flop_registry
"""The function that counts the floating-point operations of a call, for each operator."""
COPIES = ("_to_copy", "copy_", "clone")
COUNTED_MICRO_BATCHES = 3
"""The number of micro-batches that are counted; those between the first and the last are equal."""


@dataclass(frozen=True)
class OperatorCall:
    """A call of a torch operator, with its memory traffic and floating-point operations."""

    name: str
    reads: dict[int, int]
    """The bytes that are read of each storage, by the number of its contents."""
    writes: dict[int, int]
    flops: int
    """Floating-point operations of matrix products; 0 for all others, which memory bounds."""
    is_bfloat16: bool
    """Whether the products are in bfloat16."""
    fusible: bool
    """Whether a compiler can fuse it with adjacent calls, since it is elementwise."""

    @property
    def bytes_moved(self) -> int:
        """The bytes of memory that the operator call reads and writes."""
        return sum(self.reads.values()) + sum(self.writes.values())


class OperatorTraffic(OperatorCounter):
    """A recorder of torch operator calls, with the bytes of memory that each reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OperatorCall] = []
        self._contents: dict[int, int] = {}
        self._written = 0

    def clear(self) -> None:
        """Discard the operator calls recorded so far."""
        self.calls = []

    def record_operator(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator call with the bytes of the tensors that it reads and writes."""
        packet = function.overloadpacket
        name = packet.__name__
        if function.namespace != "aten" or function.is_view or name in FREE_OPERATORS:
            return
        results = _tensors(result)
        reads = self._bytes_by_content(_tensors((args, kwargs)))
        changed = [*results, *_changed(function, args, kwargs)]
        for each in changed:
            self._written += 1
            self._contents[storage_address(each)] = self._written
        first = next(iter(_tensors((args, kwargs))), None)
        flops = FLOPS.get(packet)
        self.calls.append(
            OperatorCall(
                name,
                reads,
                self._bytes_by_content(changed),
                flops(*args, **kwargs, out_val=result) if flops else 0,
                is_bfloat16=first is not None and first.dtype == torch.bfloat16,
                fusible=torch.Tag.pointwise in function.tags or name in COPIES,
            )
        )

    def _bytes_by_content(self, tensors: Iterable[Tensor]) -> dict[int, int]:
        """Return the bytes that tensors cover of each storage, by the number of its contents.

        Views of one storage, such as gradients in a bucket, add up to at most all of it.
        """
        views = {
            (self._content(each), each.storage_offset(), each.shape, each.stride()): each
            for each in tensors
        }
        moved: dict[int, int] = {}
        for (content, *_), view in views.items():
            whole = view.untyped_storage().nbytes()
            moved[content] = min(whole, moved.get(content, 0) + _bytes(view))
        return moved

    def _content(self, tensor: Tensor) -> int:
        address = storage_address(tensor)
        if address not in self._contents:
            self._written += 1
            self._contents[address] = self._written
        return self._contents[address]


@dataclass(frozen=True)
class StepTraffic:
    """The operator calls of one process in a training step, eager and as a compiler fuses them."""

    examples: int
    eager: list[OperatorCall]
    fused: list[OperatorCall]
    """The calls as a compiler fuses them."""


def count_traffic(recipe: Recipe, workers_per_pass: int, *, world_size: int = 1) -> StepTraffic:
    """Record rank 0's operator calls in a training step with this many workers per micro-batch.

    It is the second step, after the optimizer has created its state.
    """
    traffic, begins = OperatorTraffic(), list[int]()
    with fake_tensor_mode(traffic):
        learner = fake_learner(recipe, world_size)
        task = fake_task(learner, workers_per_pass, COUNTED_MICRO_BATCHES)
        for _ in range(2):
            traffic.clear()
            begins.clear()
            batches = fake_batches(recipe, task.micro_batches)
            train_step(learner, task, _noted(batches, begins, traffic.calls))
    passes = count_micro_batches(learner, workers_per_pass)
    calls, between = traffic.calls, traffic.calls[slice(*begins[1:3])] if begins[2:] else []
    more = passes - len(begins)
    return StepTraffic(
        passes * workers_per_pass * recipe.worker_batch,
        calls + between * more,
        fuse_calls(calls) + fuse_calls(between) * more,
    )


def _noted(
    batches: Iterator[Any], begins: list[int], calls: Sequence[OperatorCall]
) -> Iterator[Any]:
    """Yield batches, and before each one append the number of operator calls so far to `begins`."""
    for batch in batches:
        begins.append(len(calls))
        yield batch


def count_bare_traffic(recipe: Recipe, examples: int) -> list[OperatorCall]:
    """Record the operator calls of a plain PyTorch training step of the recipe's network.

    It has torch's own BN over all images, cross-entropy and fused SGD.
    """
    traffic = OperatorTraffic()
    with fake_tensor_mode(traffic):
        model = make_network(recipe)
        for layer in worker_batch_norms(model):
            layer.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        lower = AUTOCAST_DTYPES.get(recipe.precision)
        [(pixels, labels)] = fake_batches(recipe, [MicroBatch(0, np.arange(examples))])
        for _ in range(2):
            traffic.clear()
            with torch.autocast("cpu", lower or torch.bfloat16, enabled=lower is not None):
                loss = F.cross_entropy(model(pixels), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return traffic.calls


def fuse_calls(calls: Sequence[OperatorCall]) -> list[OperatorCall]:
    """Fuse adjacent fusible operator calls as a compiler does, and return the remaining calls.

    A fused call reads each input from outside once, and writes only what others read.
    """
    read_last: dict[int, int] = {}
    for number, call in enumerate(calls):
        read_last |= dict.fromkeys(call.reads, number)
    joined: list[OperatorCall] = []
    group: list[OperatorCall] = []

    def close(end: int) -> None:
        if not group:
            return
        made = {content for call in group for content in call.writes}
        reads = {c: size for call in group for c, size in call.reads.items() if c not in made}
        writes = {
            content: size
            for call in group
            for content, size in call.writes.items()
            # A result that is not read in this step is for the next one, such as a parameter.
            if read_last.get(content, end) >= end
        }
        names = "+".join(dict.fromkeys(call.name for call in group))
        joined.append(OperatorCall(names, reads, writes, 0, is_bfloat16=False, fusible=True))
        group.clear()

    for number, call in enumerate(calls):
        if call.fusible:
            group.append(call)
        else:
            close(number)
            joined.append(call)
    close(len(calls))
    return joined


def traffic_by_operator(calls: Iterable[OperatorCall]) -> dict[str, tuple[int, int]]:
    """Return the number of calls and the total bytes moved of each operator, by its name."""
    found: dict[str, tuple[int, int]] = {}
    for call in calls:
        count, moved = found.get(call.name, (0, 0))
        found[call.name] = count + 1, moved + call.bytes_moved
    return found


def _changed(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an in-place operator without results, as _foreach_add_, writes to."""
    if function._schema.returns:
        return []
    names = [each.name for each in function._schema.arguments]
    named = dict(zip(names, args, strict=False)) | kwargs
    written = [
        named.get(each.name)
        for each in function._schema.arguments
        if each.alias_info is not None and each.alias_info.is_write
    ]
    return _tensors(written)


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


def _bytes(tensor: Tensor) -> int:
    # An expanded tensor has fewer elements in memory than its shape says.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
