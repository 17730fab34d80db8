"""The checks that the gradient of a step is the sum of those of its micro-batches.

A hook on the gradient of a parameter must be additive, and an embedding may not scale the rows that
it looks up.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.recipe import Recipe

GradientHook: TypeAlias = Callable[[Tensor], Tensor | None]
"""The type of what `Tensor.register_hook` takes."""
SIZE = 100.0
"""The standard deviation of the gradients that are tried; hooks clip smaller values, or norms."""
TOLERANCE = 0.05
"""The relative difference of an element that is no clipping, but the rounding of a hook."""


def sums_micro_batches(recipe: Recipe) -> bool:
    """Return whether a step of a recipe may sum the gradients of several micro-batches."""
    sums_workers = recipe.strategy.name in ("allreduce", "sync")
    return sums_workers and any(stage.workers > 1 for stage in recipe.stages)


def check_micro_batches(network: nn.Module, recipe: Recipe) -> None:
    """Raise UsageError if a user's own network makes a run depend on its micro-batches."""
    model, data = recipe.model, recipe.data
    own = f"model={model.name}" if model.is_own else f"data.workload={data.workload}"
    depends = "so that the result would depend on the number of processes and micro-batches"
    if path := find_renormalized_embedding(network):
        raise UsageError(
            f"{own} has an embedding, {path}, with max_norm, which scales the rows that a "
            f"micro-batch looks up, {depends}; leave max_norm out"
        )
    if path := find_nonadditive_hook(network):
        raise UsageError(
            f"{own} has a hook on the gradient of {path} that is not additive, such as one that "
            f"clips, {depends}; clip the summed gradient by optim.clip_norm, or change it in an "
            "optimizer of your own"
        )


def find_renormalized_embedding(network: nn.Module) -> str | None:
    """Return the path of an embedding with max_norm, or None without one.

    Its forward pass scales rows in place, on each process those that its own examples look up.
    """
    for path, module in network.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            return path or type(module).__name__
    return None


def find_nonadditive_hook(network: nn.Module) -> str | None:
    """Return the name of a trained parameter with a hook that is not additive, or None.

    A hook of a parameter gets the gradient of one micro-batch. It must give for a sum what it gives
    for the summands in sum, as a mask or a factor does.
    """
    for path, parameter in network.named_parameters():
        hooks: dict[int, GradientHook] = getattr(parameter, "_backward_hooks", None) or {}
        may_change = parameter.requires_grad and not parameter.is_meta
        if may_change and not all(_is_additive(hook, parameter) for hook in hooks.values()):
            return path
    return None


@torch.no_grad()
def _is_additive(hook: GradientHook, parameter: Tensor) -> bool:
    """Return whether a hook is additive for gradients of a parameter, or changes none.

    One that leaves a gradient of zeros alone is taken for one that only observes, and sees no other
    made-up gradient; an additive one makes zeros of it, and gets three more. One that fails is
    taken for additive, since it may need what a backward pass leaves.
    """

    def call(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        returned = hook(changed)
        return changed if returned is None else returned

    generator = torch.Generator().manual_seed(0)
    zeros = torch.zeros_like(parameter)
    try:
        version = zeros._version
        returned = hook(zeros)
        if returned is None and zeros._version == version:
            return True
        if (zeros if returned is None else returned).count_nonzero():
            return False
        one, other = (
            SIZE * torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter)
            for _ in range(2)
        )
        whole, first, second = call(one + other), call(one), call(other)
        if not all(each.isfinite().all() for each in (whole, first, second)):
            return True  # beyond the range of a low precision
        rounding = 4 * torch.finfo(whole.dtype).eps * whole.abs().max()
        allowed = TOLERANCE * (first.abs() + second.abs()) + rounding
        return bool(((whole - first - second).abs() <= allowed).all())
    except Exception:
        return True
