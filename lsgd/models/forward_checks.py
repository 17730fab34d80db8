"""The checks that a forward pass keeps images apart: in outputs, batch norm and buffers."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lsgd.models.parameter_roles import is_vector
from lsgd.models.randomness_guard import seeded_generators
from lsgd.rules.batchnorm import WorkerBatchNorm
from lsgd.rules.counter_dropout import CounterBasedDropout

SMALL = 0.1
"""The size of the initial scales, such as those of residual branches, that may hide differences."""


def find_scattered_rows(network: nn.Module, call: Callable[[slice], object]) -> str | None:
    """Return the path of a batch norm layer in whose input the rows of an image are not adjacent.

    Two images must give the rows that each gives alone; `call` lets a slice of two images go
    through the network. Only a network with several rows per image in a layer has to compute here.
    The network must be on the CPU, and is modified.
    """
    rows: dict[str, list[Tensor]] = {}
    for path, norm in network.named_modules():
        if isinstance(norm, WorkerBatchNorm) and norm.rows_per_image > 1:
            seen = rows[path] = []
            norm.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
    if not rows:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in network.parameters():
            if is_vector(parameter):  # a scale of 0 would hide differences
                parameter.uniform_(0.5, 1.5)
        network.eval()
        for images in (slice(0, 2), slice(0, 1), slice(1, 2)):
            call(images)
    for path, seen in rows.items():
        calls = len(seen) // 3
        for both, *each in zip(seen[:calls], seen[calls:-calls], seen[-calls:], strict=True):
            # A tolerance for float32; rows of another image differ far more.
            if sum(map(len, each)) != len(both) or not torch.allclose(
                both, torch.cat(each), rtol=1e-3, atol=1e-3
            ):
                return path
    return None


def find_dependence(
    network: nn.Module, call: Callable[[list[int]], object], count: int
) -> str | None:
    """Return what a network's output for an image depends on besides the image, or None.

    `call` lets images of the given numbers through the network, which is on the CPU and modified,
    and returns the output. Among `count` of them image 1 keeps its place, and so its rounding: its
    rows in the output and in the input of batch norm layers are compared, in tensors that a further
    image lengthens. Batch norm and dropout, which depend on workers and draw by rule, are set to
    evaluation mode.
    """
    seen: list[Tensor] = []
    for module in network.modules():
        if isinstance(module, WorkerBatchNorm) and module.training:
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
        if isinstance(module, WorkerBatchNorm | CounterBasedDropout):
            module.eval()

    def compute(images: list[int]) -> list[Tensor]:
        seen.clear()
        # Every call draws the same numbers, since draws are none of these dependencies.
        with torch.random.fork_rng(devices=[]), seeded_generators(0):
            found = [*tree_leaves(call(images)), *seen]
        return [each for each in found if isinstance(each, Tensor) and each.is_floating_point()]

    def row_of_image_1(images: list[int]) -> list[Tensor]:
        return [
            each.chunk(count)[1]
            for each, more in zip(compute(images), longer, strict=False)
            if each.dim() and more.dim() and len(more) * count == len(each) * (count + 1) > 0
        ]

    same = [*range(count)]
    others = [count, 1, *range(count + 1, 2 * count - 1)]
    with torch.no_grad():
        for parameter in network.parameters():
            if _hides_differences(parameter):
                values = torch.linspace(0.5, 1.5, parameter.numel(), device=parameter.device)
                parameter.copy_(values.view_as(parameter))
        longer = compute([*same, count])
        first = row_of_image_1(same)
        if not _differ(first, row_of_image_1(others)):
            return None
        is_state = _differ(first, row_of_image_1(same))
    return "earlier forward passes" if is_state else "the other images of a micro-batch"


def _hides_differences(parameter: Tensor) -> bool:
    """Return whether a parameter is 0, or a small scale such as those of residual branches."""
    if not parameter.is_floating_point() or not parameter.numel():
        return False
    return not parameter.any() or (is_vector(parameter) and bool(parameter.abs().max() < SMALL))


def _differ(ones: list[Tensor], others: list[Tensor]) -> bool:
    """Return whether two calls gave tensors of other values, by more than rounding."""
    for one, other in zip(ones, others, strict=False):
        if one.shape == other.shape and one.numel():
            tolerance = torch.finfo(one.dtype).eps ** 0.6 * float(one.nan_to_num().abs().max())
            if not torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True):
                return True
    return False


BufferRecord: TypeAlias = dict[str, tuple[Tensor, int, Tensor]]
"""Each buffer by its path, with its version, which a change in place increases, and a copy."""


def record_buffers(network: nn.Module) -> BufferRecord:
    """Return a network's buffers, other than those of batch norm, with versions and copies."""
    norms = {
        path
        for path, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    return {
        path: (buffer, buffer._version, buffer.detach().clone())
        for path, buffer in network.named_buffers()
        if path.rpartition(".")[0] not in norms
    }


def find_changed_buffer(network: nn.Module, record: BufferRecord) -> str | None:
    """Return the path of a buffer that was changed in place, or assigned with other values."""
    now = dict(network.named_buffers())
    for path, (before, version, values) in record.items():
        buffer = now.get(path, before)
        if (buffer is before and buffer._version != version) or _has_other_values(buffer, values):
            return path
    return None


def _has_other_values(buffer: Tensor, values: Tensor) -> bool:
    """Return whether a buffer has other values than a copy, which has the same shape and device."""
    kinds = [(each.shape, each.device, each.layout) for each in (buffer, values)]
    # Others are converted, or tables for images of another size; on meta there are no values.
    if kinds[0] != kinds[1] or values.is_meta or values.layout is not torch.strided:
        return False
    return bool(((buffer != values) & ~((buffer != buffer) & (values != values))).any())  # NaN
