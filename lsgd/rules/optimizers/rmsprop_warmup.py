"""The change from RMSprop to momentum SGD in the first epochs of a run (Akiba et al. 2017).

    v <- mu2 v + (1 - mu2) g^2
    d <- mu1 d + (alpha_sgd + alpha_rms / (sqrt(v) + eps)) g
    w <- w - lr d

Both parts are inside the momentum. alpha_rms is (1 - alpha_sgd) rms_lr / lr, and alpha_sgd grows
with the epoch from nearly 0 to 1. Its slope is 1 / period from the center on, as that of the
exponential function there: notes on the paper and a reproduction have 2 / period, with which it
would reach 1.5 before it ends at 1.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lsgd.rules.optimizers.lamb import UNCORRECTED, update_by_sgd


def alpha_sgd(epoch: float, *, center: float = 10.0, period: float = 5.0) -> float:
    """Return the share of momentum SGD in the update of an epoch, from 0 to 1.

    >>> [round(alpha_sgd(epoch), 6) for epoch in (0, 10, 11, 12.5)]
    [0.009158, 0.5, 0.7, 1.0]
    """
    passed = (epoch - center) / period
    return 0.5 * math.exp(2 * passed) if passed < 0 else min(0.5 + passed, 1.0)


class RMSpropWarmup(torch.optim.Optimizer):
    """An optimizer that changes from RMSprop to momentum SGD, by torch's fused kernels.

    `epoch` is the epoch of the next update, a whole number. An update is skipped if `found_inf` is
    1. Its only working memory are the gradients.
    """

    found_inf: Tensor | None = None
    epoch: int = 0

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        mu1: float,
        mu2: float,
        eps: float,
        rms_lr: float,
        beta_center: float,
        beta_period: float,
    ) -> None:
        defaults = {
            "lr": 0.0, "mu1": mu1, "mu2": mu2, "eps": eps, "rms_lr": rms_lr,
            "beta_center": beta_center, "beta_period": beta_period, "weight_decay": 0.0,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for each in group["params"]:
                names = ("momentum_buffer", "square_avg")
                self.state[each] = {name: torch.zeros_like(each) for name in names}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters, or skip if `found_inf` is 1; gradients are overwritten."""
        for group in self.param_groups:
            weights = group["params"]
            if not weights:
                continue
            gradients = [weight.grad for weight in weights]
            if decay := group["weight_decay"]:
                torch._foreach_add_(gradients, weights, alpha=decay)
            momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
            share = alpha_sgd(self.epoch, center=group["beta_center"], period=group["beta_period"])
            if share < 1:  # afterwards the mean square has no effect, and is not updated
                self._add_rms(group, momenta, gradients, share)
                torch._foreach_mul_(gradients, share)
            update_by_sgd(
                weights,
                gradients,
                momenta,
                lr=group["lr"],
                momentum=group["mu1"],
                found_inf=self.found_inf,
            )

    def _add_rms(
        self, group: dict[str, Any], momenta: list[Tensor], gradients: list[Tensor], share: float
    ) -> None:
        """Update the mean squares, and add the part of RMSprop to the momenta.

        The kernel of Adam with beta1 = 0 has the gradient itself for a mean, so that both can be
        one tensor. The sum is divided by mu1, by which the update by SGD multiplies it.
        """
        # At an lr of 0, behind a decay, the weights stay, and no ratio to the lr can be had.
        alpha_rms = (1 - share) * group["rms_lr"] / group["lr"] if group["lr"] else 0.0
        torch._fused_adam_(
            momenta,
            gradients,
            gradients,
            [self.state[weight]["square_avg"] for weight in group["params"]],
            [],
            [torch.full((), UNCORRECTED, device=gradients[0].device)] * len(gradients),
            lr=-alpha_rms / group["mu1"],
            beta1=0.0,
            beta2=group["mu2"],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=self.found_inf,
        )
