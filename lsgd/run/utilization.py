"""The share of a GPU's peak arithmetic that a run's training uses (model FLOPs utilization)."""

import torch
from torch import nn

from lsgd.job.device import device_name
from lsgd.job.gpus import known_gpu
from lsgd.models import make_network
from lsgd.recipe import Recipe


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
    # Imported here, since it imports Triton, or warns on standard error if a GPU's torch has none.
    from torch.utils.flop_counter import FlopCounterMode

    side = recipe.training_sizes[0]
    try:
        with torch.device("meta"):
            network: nn.Module = make_network(recipe).eval()
            dtype = next(network.parameters()).dtype
            image = torch.empty(1, recipe.data.channels, side, side, dtype=dtype)
            with FlopCounterMode(display=False) as counter:
                network(image).sum().backward()
    except Exception:  # of code that is not lsgd's, where a network is of a library
        return None
    return int(counter.get_total_flops())
