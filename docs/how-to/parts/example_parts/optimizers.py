"""Lion (Chen et al. 2023): the sign of a momentum, with decoupled weight decay."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """Update each weight by the sign of an average of its gradients."""

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters once."""
        for group in self.param_groups:
            for weight in group["params"]:
                self._update(weight, group["lr"], group["betas"], group["weight_decay"])

    def _update(self, weight: Tensor, lr: float, betas: tuple[float, float], decay: float) -> None:
        state = self.state[weight]
        if not state:
            state["average"] = torch.zeros_like(weight)
        average = state["average"]
        assert weight.grad is not None
        direction = average.lerp(weight.grad, 1 - betas[0]).sign_()
        weight.mul_(1 - lr * decay).sub_(direction, alpha=lr)
        average.lerp_(weight.grad, 1 - betas[1])
