"""What a step sums over the GPUs, in the order of the backward pass: sizes and when each is ready.

Both come from the real model and the real reducer, on the meta device, which takes no memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lsgd.comm.single import SingleComm
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.strategy.reducer import Reducer

UNFUSED = 1e-9
"""A bucket size in MiB so small that no second tensor fits into a bucket."""


@dataclass(frozen=True)
class Piece:
    """Gradients that are summed together."""

    size: int
    """Size on the wire, in bytes."""
    ready: float
    """The share of the backward pass after which all its gradients are computed."""


def pieces(recipe: Recipe, *, fused: bool) -> list[Piece]:
    """The sums of one step: buckets of comm.bucket_mb as lsgd makes them, or every tensor alone.

    The backward pass is taken to spend its time on the layers by their multiply-adds.
    """
    model = _model(recipe)
    reducer = Reducer(
        model.parameters(),
        SingleComm(),
        bucket_mb=recipe.comm.bucket_mb if fused else UNFUSED,
        compression=recipe.gradient_compression,
    )
    ready = iter(_ready(model, recipe.data.channels, recipe.data.image_size))
    sums = []
    for bucket in reducer.buckets:
        width = 2 if reducer.compresses else bucket.flat.element_size()
        # A bucket can be summed once the last of its gradients is computed.
        last = [next(ready) for _ in range(len(bucket.views))][-1]
        sums.append(Piece(bucket.flat.numel() * width, last))
    return sums


def parameter_sizes(recipe: Recipe) -> list[int]:
    """The number of elements of each parameter of the recipe's model, in their order."""
    return [parameter.numel() for parameter in _model(recipe).parameters()]


def multiply_adds(model: nn.Module, channels: int, image_size: int) -> dict[nn.Module, int]:
    """The multiply-adds of each convolution and fully connected layer, for one image forward."""
    counts: dict[nn.Module, int] = {}

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        # Each number that comes out is as many multiply-adds as one of its filters has weights.
        counts[layer] = output.numel() * weight[0].numel()

    hooks = [
        layer.register_forward_hook(count)
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    first = next(model.parameters())
    model.eval()(torch.empty(1, channels, image_size, image_size).to(first))
    for hook in hooks:
        hook.remove()
    return counts


def _model(recipe: Recipe) -> nn.Module:
    with torch.device("meta"):
        return make_network(recipe)


def _ready(model: nn.Module, channels: int, image_size: int) -> list[float]:
    """When each gradient is computed, last layer first, as a share of the backward pass."""
    work = multiply_adds(model, channels, image_size)
    total, done = sum(work.values()), 0
    ready = []
    for layer in list(model.modules())[::-1]:
        done += work.get(layer, 0)
        ready += [done / total for _ in layer.parameters(recurse=False)]
    return ready
