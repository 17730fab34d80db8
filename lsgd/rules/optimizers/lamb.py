"""LAMB: Adam whose update is scaled for each tensor (You et al. 2020).

    m <- beta1 m + (1 - beta1) g        v <- beta2 v + (1 - beta2) g^2
    u <- m / (sqrt(v) + eps) + decay w  w <- w - lr |w| / |u| u

The ratio is 1 if the norm of w or u is 0, and for the tensors that are not scaled: their update is
that of AdamW. The authors' code for ResNet-50 uses m and v as they are; timm and apex correct them
for their start at 0, as Adam does.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

ADAPTED_DECAY = "lars_decay"
"""The key of the weight decay of a group that LARS or LAMB scales, added before it is scaled."""
UNCORRECTED = 1e18
"""A step count so late that Adam's bias corrections are 1, which turns them off."""


def update_by_sgd(
    weights: list[Tensor],
    gradients: list[Tensor],
    momenta: Sequence[Tensor] = (),
    *,
    lr: float = 1.0,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    found_inf: Tensor | None,
) -> None:
    """Update weights by torch's fused kernel of SGD, equation (9), unless `found_inf` is 1."""
    torch._fused_sgd_(
        weights, gradients, list(momenta), weight_decay=weight_decay, momentum=momentum, lr=lr,
        dampening=0.0, nesterov=nesterov, maximize=False, is_first_step=False,
        grad_scale=None, found_inf=found_inf,
    )  # fmt: skip


class Lamb(torch.optim.Optimizer):
    """A LAMB optimizer by torch's fused kernels, with gradients as its only working memory.

    Groups with ADAPTED_DECAY are scaled. An update is skipped if `found_inf` is 1.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        betas: tuple[float, float],
        eps: float,
        bias_correction: bool,
    ) -> None:
        defaults = {
            "lr": 0.0, "betas": betas, "eps": eps, "bias_correction": bias_correction,
            "weight_decay": 0.0, "decoupled_weight_decay": True,
            "fused": True,  # by which torch loads step counts to the device
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each] = {
                    name: torch.zeros_like(each) for name in ("exp_avg", "exp_avg_sq")
                }
                if bias_correction:
                    self.state[each]["step"] = torch.zeros((), device=each.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters, or skip if `found_inf` is 1; gradients are overwritten."""
        for group in self.param_groups:
            weights = group["params"]
            if not weights:
                continue
            gradients = [weight.grad for weight in weights]
            if ADAPTED_DECAY not in group:
                self._adamw(group, weights, gradients, group["lr"], group["weight_decay"])
                continue
            # AdamW multiplies a tensor by 1 - lr decay, here 0, and adds m / (sqrt(v) + eps) to it
            # at an lr of -1: the gradients become that direction, in one pass and without a copy.
            self._adamw(group, gradients, gradients, -1.0, -1.0)
            if decay := group[ADAPTED_DECAY]:
                torch._foreach_add_(gradients, weights, alpha=decay)
            of_weights = torch.stack(torch._foreach_norm(weights))
            of_updates = torch.stack(torch._foreach_norm(gradients))
            ratios = torch.where((of_weights > 0) & (of_updates > 0), of_weights / of_updates, 1)
            torch._foreach_mul_(gradients, (group["lr"] * ratios).unbind())
            update_by_sgd(weights, gradients, found_inf=self.found_inf)

    def _adamw(
        self,
        group: dict[str, Any],
        tensors: list[Tensor],
        gradients: list[Tensor],
        lr: float,
        weight_decay: float,
    ) -> None:
        """Update both means of a group by its gradients, and tensors by AdamW with these means."""
        states = [self.state[weight] for weight in group["params"]]
        if group["bias_correction"]:
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
        else:
            steps = [torch.full((), UNCORRECTED, device=tensors[0].device)] * len(tensors)
        torch._fused_adamw_(
            tensors,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=weight_decay,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=self.found_inf,
        )
        if group["bias_correction"] and self.found_inf is not None:
            torch._foreach_sub_(steps, [self.found_inf] * len(steps))
