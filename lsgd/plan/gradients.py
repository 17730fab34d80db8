"""The gradient buckets of a step: their sizes, and when in the backward pass each is ready.

Both are computed with the real model and the real reducer on the meta device, which takes no
memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lsgd.comm.single import SingleComm
from lsgd.models import make_network
from lsgd.recipe import Recipe
from lsgd.rules.optim import trained_parameters
from lsgd.strategy.reducer import Reducer

UNFUSED = 1e-9
"""A bucket size in MiB so small that a bucket holds one tensor only."""


@dataclass(frozen=True)
class GradientBucket:
    """A bucket of gradients that are all-reduced together: its size, and when it is ready."""

    size: int
    """The size on the wire, in bytes."""
    ready_share: float
    """The share of the backward pass after which all gradients of the bucket are computed."""


def gradient_buckets(recipe: Recipe, *, fused: bool) -> list[GradientBucket]:
    """Return the gradient buckets of one training step: those of lsgd, or one per tensor.

    With `fused` they have comm.bucket_mb each. The time of the backward pass is assumed to be
    spread over the layers by their multiply-adds.
    """
    model = _model(recipe)
    reducer = Reducer(
        trained_parameters(model),
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
        sums.append(GradientBucket(bucket.flat.numel() * width, last))
    return sums


def parameter_sizes(recipe: Recipe) -> list[int]:
    """Return the number of elements of each parameter of the recipe's model, in model order."""
    return [parameter.numel() for parameter in trained_parameters(_model(recipe))]


def multiply_adds(model: nn.Module, channels: int, image_size: int) -> dict[nn.Module, int]:
    """Count the multiply-adds of each layer of a network in the forward pass of one image.

    They are those of all calls of a layer.
    """
    counts: dict[nn.Module, int] = {}

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        # Each output value takes as many multiply-adds as one filter has weights.
        counts[layer] = counts.get(layer, 0) + output.numel() * weight[0].numel()

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
    """Return the share of the backward pass after which each gradient is computed.

    The gradients are in the order of the backward pass: those of the last layer come first. All are
    computed at its end in a network without a layer whose work is counted.
    """
    work = multiply_adds(model, channels, image_size)
    total, done = sum(work.values()), 0
    ready: dict[Tensor, float] = {}
    for layer in list(model.modules())[::-1]:
        done += work.get(layer, 0)
        # The gradient of a shared parameter is complete after the first layer that uses it.
        ready |= dict.fromkeys(layer.parameters(recurse=False), done / total if total else 1.0)
    return [ready[parameter] for parameter in trained_parameters(model)[::-1]]
