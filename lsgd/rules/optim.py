"""SGD with momentum in both forms of the paper, and which parameters decay.

Goyal et al. 2017, remark 2, has the update in two forms:

    (9)   u <- m u + g       w <- w - lr u      PyTorch's SGD; a change of lr needs no care
    (10)  v <- m v + lr g    w <- w - v         lr is inside v: needs momentum correction

They agree while the lr stands still. When it changes, (10) must multiply m by new lr / old lr.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """All parameters in two groups: decayed, and gamma and beta of BN, which are not (section 5.1).

    Told apart by the type of their module, since the names of shortcut BNs do not contain "bn".
    """
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for module in model.modules():
        mine = list(module.parameters(recurse=False))
        (kept if isinstance(module, nn.modules.batchnorm._BatchNorm) else decayed).extend(mine)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]


def make_optimizer(
    model: nn.Module,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    equation: int,
    momentum_correction: bool,
) -> torch.optim.Optimizer:
    """The optimizer of a recipe. Its lr is set before every step, with `set_lr`.

    Either skips its update, parameters and momentum alike, when its `found_inf` is 1.
    """
    return over_groups(
        parameter_groups(model, weight_decay),
        momentum=momentum,
        nesterov=nesterov,
        equation=equation,
        momentum_correction=momentum_correction,
    )


def over_groups(
    groups: list[dict[str, Any]],
    *,
    momentum: float,
    nesterov: bool,
    equation: int,
    momentum_correction: bool,
) -> torch.optim.Optimizer:
    """The optimizer of a recipe over any tensors, in groups as parameter_groups makes them."""
    if equation == 9:
        return torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
    return VelocitySGD(groups, momentum=momentum, nesterov=nesterov, corrected=momentum_correction)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let the coming update of all groups use this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class VelocitySGD(torch.optim.Optimizer):
    """Equation (10): the lr inside the momentum buffer, with or without momentum correction.

    For the ablation of remark 2. The first lr has no predecessor, and the buffer is 0 then.
    """

    found_inf: Tensor | None = None

    def __init__(
        self, params: list[dict[str, Any]], *, momentum: float, nesterov: bool, corrected: bool
    ) -> None:
        defaults = {
            "lr": 0.0, "last_lr": 0.0, "momentum": momentum, "nesterov": nesterov,
            "corrected": corrected, "weight_decay": 0.0,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update, or none if `found_inf` is 1."""
        for group in self.param_groups:
            lr, last_lr, m = group["lr"], group["last_lr"], group["momentum"]
            if group["corrected"] and last_lr:
                m *= lr / last_lr
            for parameter in group["params"]:
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                state = self.state[parameter]
                if not state:
                    state["velocity"] = torch.zeros_like(parameter)
                velocity = state["velocity"].mul(m).add(gradient, alpha=lr)
                # Nesterov looks one step ahead: with u = v / lr this is lr (g + momentum u).
                ahead = (
                    group["momentum"] * velocity + lr * gradient if group["nesterov"] else velocity
                )
                self._update(state["velocity"], velocity)
                self._update(parameter, parameter - ahead)
            group["last_lr"] = lr

    def _update(self, old: Tensor, new: Tensor) -> None:
        old.copy_(new if self.found_inf is None else torch.where(self.found_inf.bool(), old, new))
