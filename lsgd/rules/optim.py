"""SGD with momentum in both forms of the paper, LARS, Adam, Adagrad, clipping, and what decays.

Goyal et al. 2017, remark 2, has the update in two forms:

    (9)   u <- m u + g       w <- w - lr u      PyTorch's SGD; a change of lr needs no care
    (10)  v <- m v + lr g    w <- w - v         lr is inside v: needs momentum correction

They agree while the lr stands still. When it changes, (10) must multiply m by new lr / old lr.
LARS (You et al. 2017) scales the gradient of each tensor and goes on by either.

Adam (Kingma and Ba 2015) and Adagrad (Duchi et al. 2011) are torch's own; decay is in the gradient.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.errors import Refused
from lsgd.rules.apex import apex_sgd

STEP = "step"
"""The state of Adam and Adagrad that is no tensor of the parameter's shape: a number, of the
updates that the parameter has had."""


NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""The layers whose gamma and beta never decay."""
GROUPING = ("weight_decay", "decay_bias", "adapts")
"""The settings of an optimizer that say which group a parameter is in, and over_groups lacks."""
LARS_DECAY = "lars_decay"
"""The setting of a group that LARS scales: the decay that it adds before it does so."""


def parameter_groups(
    model: nn.Module, weight_decay: float, decay_bias: bool = True, adapts: str | None = None
) -> list[dict[str, Any]]:
    """All parameters in groups: decayed, and not, as gamma and beta of a norm (section 5.1).

    Told apart by the type of their module, since the names of shortcut BNs do not contain "bn".
    With `adapts` two such groups stand in front, of those that LARS scales.
    """
    kinds = itertools.product((True, False) if adapts else (False,), (True, False))
    members: dict[tuple[bool, bool], list[nn.Parameter]] = {kind: [] for kind in kinds}
    for module in model.modules():
        norm = isinstance(module, NORMS)
        for name, parameter in module.named_parameters(recurse=False):
            weight = not norm and "bias" not in name
            scaled = adapts == "all" or (adapts == "weights" and weight)
            members[scaled, weight or (decay_bias and not norm)].append(parameter)
    groups = []
    for (scaled, decays), parameters in members.items():
        decay = weight_decay if decays else 0.0
        settings = {"weight_decay": 0.0, LARS_DECAY: decay} if scaled else {"weight_decay": decay}
        groups.append({"params": parameters, **settings})
    return groups


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of an optimizer that are not of its groups."""
    return {key: value for key, value in settings.items() if key not in GROUPING}


def make_optimizer(
    model: nn.Module, *, weight_decay: float, decay_bias: bool, adapts: str, **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer of a recipe, by the settings of over_groups. Its lr is set before every step,
    with `set_lr`.

    Each skips its update, parameters and state alike, when its `found_inf` is 1.
    """
    lars = settings["name"] == "lars"
    groups = parameter_groups(model, weight_decay, decay_bias, adapts if lars else None)
    return over_groups(groups, **settings)


def _no_norm() -> Tensor:
    raise ValueError("an optimizer that clips needs the norm of the gradient")


def over_groups(
    groups: list[dict[str, Any]],
    *,
    name: str,
    momentum: float,
    nesterov: bool,
    equation: int,
    momentum_correction: bool,
    beta2: float,
    eps: float,
    clip_norm: float | None,
    trust: float,
    fused: str,
    norm: Callable[[], Tensor] = _no_norm,
) -> torch.optim.Optimizer:
    """The optimizer of a recipe over any tensors, in groups as parameter_groups makes them.

    One that clips asks `norm` at every step for the norm of the whole gradient, a tensor on the
    device, of which it may have a part. Raises Refused where torch has no fused Adagrad, or apex no
    SGD.
    """
    match name:
        case "sgd" | "lars" if equation == 10:
            made: torch.optim.Optimizer = VelocitySGD(
                groups, momentum=momentum, nesterov=nesterov, corrected=momentum_correction
            )
        case "sgd" | "lars" if fused == "apex":
            made = apex_sgd(groups, momentum=momentum, nesterov=nesterov)
        case "sgd" | "lars":
            made = torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=nesterov, fused=True)
        case "adam":
            made = torch.optim.Adam(groups, lr=0.0, betas=(momentum, beta2), eps=eps, fused=True)
        case "adagrad":
            _need_fused_adagrad([tensor for group in groups for tensor in group["params"]])
            made = torch.optim.Adagrad(groups, lr=0.0, eps=eps, fused=True)
        case _:
            raise ValueError(name)
    if clip_norm is not None:
        _clip(made, clip_norm, norm)
    if name == "lars":
        _adapt(made, trust, eps)
    return made


def _need_fused_adagrad(tensors: list[Tensor]) -> None:
    """Try an update of a tensor like the first of these; torch came to it on GPUs in 2026."""
    for tensor in tensors[:1]:
        probe = torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
        probe.grad = torch.zeros_like(probe)
        try:
            torch.optim.Adagrad([probe], fused=True).step()
        except RuntimeError as error:
            raise Refused(
                f"torch {torch.__version__} has no fused Adagrad on {tensor.device.type} "
                f"({error}); write device=cpu or optim=adam, or install a newer torch"
            ) from None


def _clip(optimizer: torch.optim.Optimizer, limit: float, norm: Callable[[], Tensor]) -> None:
    """Let every update multiply its gradients by min(1, limit / norm) first (Pascanu et al. 2013).

    A pass of its own over the gradients: the kernels can divide them as they go, but by a float32,
    and a run in float64 would be right to 7 digits.
    """

    def multiply(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"]]
        if gradients:  # a server may have none
            # Where the norm is 0 the quotient is infinite, and so the factor 1.
            torch._foreach_mul_(gradients, (limit / norm()).clamp(max=1))

    optimizer.register_step_pre_hook(multiply)


def _adapt(optimizer: torch.optim.Optimizer, trust: float, eps: float) -> None:
    """Let every update scale the gradient of each tensor first (You et al. 2017, equation 6):

        g <- trust |w| / (|g| + decay |w| + eps) (g + decay w)

    Without a ratio, where the norm of w or g is 0, it is g + decay w. The norms of all tensors are
    made by one call each, and the gradients are changed where they are.
    """

    @torch.no_grad()
    def scale(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            decay, weights = group.get(LARS_DECAY), group["params"]
            if decay is None or not weights:
                continue
            gradients = [weight.grad for weight in weights]
            of_weights = torch.stack(torch._foreach_norm(weights))
            of_gradients = torch.stack(torch._foreach_norm(gradients))
            ratios = trust * of_weights / (of_gradients + decay * of_weights + eps)
            ratios = torch.where((of_weights > 0) & (of_gradients > 0), ratios, 1)
            if decay:
                torch._foreach_add_(gradients, weights, alpha=decay)
            torch._foreach_mul_(gradients, ratios.unbind())

    optimizer.register_step_pre_hook(scale)


def first_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """The state of a parameter before its first update: 0. Empty if the optimizer has none, or
    has made it already."""
    match optimizer:
        case VelocitySGD() if optimizer.defaults["momentum"]:
            names = ["velocity"]
        case torch.optim.Adam():
            names = [STEP, "exp_avg", "exp_avg_sq"]
        case _ if optimizer.defaults.get("momentum"):  # SGD, torch's or apex's
            names = ["momentum_buffer"]
        case _:
            names = []
    zero = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {name: zero if name == STEP else torch.zeros_like(parameter) for name in names}


def laid_out(parameter: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of the state of a parameter that lies in memory as the parameter does.

    A fused update walks memory; a run may have been saved with the other channels_last.
    """
    return {
        name: value.clone() if name == STEP else torch.empty_like(parameter).copy_(value)
        for name, value in state.items()
    }


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Let the coming update of all groups use this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class VelocitySGD(torch.optim.Optimizer):
    """Equation (10): the lr inside the momentum buffer, with or without momentum correction.

    For the ablation of remark 2, and for LARS. The first lr has no predecessor, and the buffer is 0
    then.
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
        """One update, or none if `found_inf` is 1. Gradients are multiplied by the lr in place."""
        for group in self.param_groups:
            lr, last_lr, parameters = group["lr"], group["last_lr"], group["params"]
            group["last_lr"] = lr
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            velocities = self._velocities(parameters) if group["momentum"] else []
            if group["corrected"] and velocities and last_lr not in (0.0, lr):
                # Before the update, and not by a larger momentum in it: Nesterov looks one step
                # ahead by the momentum itself.
                torch._foreach_mul_(velocities, self._unless_skipped(lr / last_lr))
            # Equation (9) by PyTorch's own update, of lr (g + decay w) and with an lr of 1.
            torch._foreach_mul_(gradients, lr)
            torch._fused_sgd_(
                parameters,
                gradients,
                velocities,
                weight_decay=lr * group["weight_decay"],
                momentum=group["momentum"],
                lr=1.0,
                dampening=0.0,
                nesterov=group["nesterov"],
                maximize=False,
                is_first_step=False,
                grad_scale=None,
                found_inf=self.found_inf,
            )

    def _velocities(self, parameters: list[Tensor]) -> list[Tensor]:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["velocity"] = torch.zeros_like(parameter)
        return [self.state[parameter]["velocity"] for parameter in parameters]

    def _unless_skipped(self, factor: float) -> float | Tensor:
        """The factor, or 1 where this update is skipped; the device decides that, in float64."""
        if self.found_inf is None:
            return factor
        one = torch.ones((), dtype=torch.float64, device=self.found_inf.device)
        return torch.where(self.found_inf > 0, one, factor * one)
