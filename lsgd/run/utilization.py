"""The share of a GPU's peak arithmetic that a run's training uses (model FLOPs utilization)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lsgd.job.device import device_name
from lsgd.job.gpus import known_gpu
from lsgd.models import make_network
from lsgd.recipe import Recipe

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


def utilization_per_speed(recipe: Recipe, device: torch.device, world_size: int) -> float | None:
    """Return a run's MFU at a speed of one image per second, all its GPUs being of one type.

    It is None if the peak of the device, or the floating-point operations of the run's training,
    are not known: those of images of one size by allreduce are.
    """
    gpu = known_gpu(device_name(device)) if device.type == "cuda" else None
    peak = gpu.peak(recipe.precision) if gpu else None
    if peak is None or recipe.data.workload != "images" or recipe.strategy.name != "allreduce":
        return None
    if len(recipe.training_sizes) > 1:
        return None
    flops = flops_per_image(recipe)
    return flops and flops / (world_size * peak * 1e12)


def flops_per_image(recipe: Recipe) -> int | None:
    """Count the operations of matrix products in a training image's forward and backward pass.

    They are counted on tensors without values, as `lsgd plan bound` does for a whole step. Returns
    None for a network that does not work on such tensors.
    """
    side = recipe.training_sizes[0]
    try:
        with torch.device("meta"):
            network: nn.Module = make_network(recipe).eval()
            dtype = next(network.parameters()).dtype
            image = torch.empty(1, recipe.data.channels, side, side, dtype=dtype)
            with flop_counter() as counter:
                network(image).sum().backward()
    except Exception:  # of code that is not lsgd's, where a network is of a library
        return None
    return int(counter.get_total_flops())


def flop_counter() -> FlopCounterMode:
    """Return a torch counter of floating-point operations, also right for grouped convolutions.

    torch's own counts the weight's gradient as if each output channel used all input channels.
    """
    # Imported here, since it imports Triton, or warns on standard error if a GPU's torch has none.
    from torch.utils.flop_counter import FlopCounterMode

    backward = torch.ops.aten.convolution_backward
    return FlopCounterMode(display=False, custom_mapping={backward: convolution_backward_flops})


def convolution_backward_flops(
    gradient: torch.Size,
    images: torch.Size,
    weight: torch.Size,
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    is_transposed: bool,
    _output_padding: object,
    _groups: object,
    output_mask: list[bool],
    **_: Any,
) -> int:
    """Count the operations of a convolution's backward pass, by the shapes of its arguments.

    The gradients of images and weight each take as many as the forward pass, if they are wanted.
    """
    # A weight has only the input channels of its group.
    positions = prod((images if is_transposed else gradient)[2:])
    forward = 2 * images[0] * positions * prod(weight)
    return forward * sum(output_mask[:2])
