"""The check that hooks on gradients do the same for each micro-batch as for the sum of all."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.recipe import Recipe

GradientHook: TypeAlias = Callable[[Tensor], Tensor | None]
"""The type of what `Tensor.register_hook` takes."""


def check_gradient_hooks(network: nn.Module, recipe: Recipe) -> None:
    """Raise UsageError if a hook of a user's own network makes a run depend on micro-batches.

    The gradient of a single worker, which a hook gets as a whole, may be changed in any way.
    """
    sums_workers = recipe.strategy.name in ("allreduce", "sync")
    if not sums_workers or all(stage.workers == 1 for stage in recipe.stages):
        return
    if path := find_nonadditive_hook(network):
        model, data = recipe.model, recipe.data
        own = f"model={model.name}" if model.is_own else f"data.workload={data.workload}"
        raise UsageError(
            f"{own} has a hook on the gradient of {path} that is not additive, such as one that "
            "clips, so that the result would depend on the number of processes and micro-batches; "
            "clip the summed gradient by optim.clip_norm, or change it in an optimizer of your own"
        )


def find_nonadditive_hook(network: nn.Module) -> str | None:
    """Return the name of a trained parameter with a hook that is not additive, or None.

    A hook of a parameter gets the gradient of one micro-batch. It must give for a sum what it gives
    for the summands in sum, as a mask or a factor does. Each is called with six gradients.
    """
    for path, parameter in network.named_parameters():
        hooks: dict[int, GradientHook] = getattr(parameter, "_backward_hooks", None) or {}
        may_change = parameter.requires_grad and not parameter.is_meta
        if may_change and not all(_is_additive(hook, parameter) for hook in hooks.values()):
            return path
    return None


@torch.no_grad()
def _is_additive(hook: GradientHook, parameter: Tensor) -> bool:
    """Return whether a hook is additive, for large and for small gradients of a parameter.

    One that fails is taken for additive, since it may need what a backward pass leaves.
    """

    def call(gradient: Tensor) -> Tensor:
        changed = gradient.clone()
        returned = hook(changed)
        return changed if returned is None else returned

    ramp = torch.linspace(-2, 3, parameter.numel(), device=parameter.device)
    one = ramp.to(parameter.dtype).view(parameter.shape)
    other = 5 - 3 * one  # of another direction, and another sign
    tolerance = torch.finfo(one.dtype).eps ** 0.6
    try:
        for size in (1e3, 1e-3):
            parts = call(size * one) + call(size * other)
            whole = call(size * (one + other))
            if not torch.allclose(parts, whole, rtol=0, atol=tolerance * float(whole.abs().max())):
                return False
    except Exception:
        pass
    return True
