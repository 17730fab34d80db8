"""Optimizers: both forms of SGD with momentum, LARS, Adam, and others; and gradient clipping.

Goyal et al. 2017, remark 2, has the update in two forms:

    (9)   u <- m u + g       w <- w - lr u      PyTorch's SGD; a change of lr needs no care
    (10)  v <- m v + lr g    w <- w - v         lr is inside v: needs momentum correction

They are equal while the lr is constant. When it changes, (10) must multiply m by new lr / old lr.
LARS (You et al. 2017) scales the gradient of each tensor and then applies either form.

Adam (Kingma and Ba 2015) and Adagrad (Duchi et al. 2011) are torch's own, with weight decay in the
gradient; so is AdamW (Loshchilov and Hutter 2019), which multiplies a weight by 1 - lr decay before
the update of Adam, whose means have no part of the decay. Optimizers that torch does not have are
in lsgd.rules.optimizers.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.errors import UsageError
from lsgd.own_parts import OPTIMIZER, OwnPart, imported_part, is_import_path
from lsgd.rules.optimizers.apex import apex_sgd
from lsgd.rules.optimizers.lamb import ADAPTED_DECAY, Lamb, update_by_sgd
from lsgd.rules.optimizers.rmsprop_warmup import RMSpropWarmup

STEP_KEY = "step"
"""The key of the step count of Adam, AdamW and Adagrad, a scalar unlike their other state."""


NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""The layers whose gamma and beta have no weight decay."""
GROUP_SETTINGS = ("weight_decay", "decay_bias", "decay_norm", "decay", "adapts", "head_lr")
"""The settings that determine a parameter's group; optimizer_over_groups does not take them."""
DECOUPLED_DECAY = "decoupled_decay"
"""The key of a group's weight decay at the full lr, by which weights shrink before an update."""
LR_FACTOR = "lr_factor"
"""The key of the ratio of a group's lr to that of the schedule; a group without it has 1."""
GROUP_KEYS = ("params", "weight_decay", ADAPTED_DECAY, DECOUPLED_DECAY, LR_FACTOR)
"""The keys of the groups that make_optimizer gives to an optimizer."""


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that are trained, in its order; the others are frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    decay_bias: bool = True,
    adapts: str | None = None,
    lr_factors: Mapping[str, float] = MappingProxyType({}),
    decay_norm: bool = False,
) -> list[dict[str, Any]]:
    """Split the trained parameters of a model by weight decay (Goyal et al. 2017, section 5.1).

    gamma and beta of norms do not decay, unless `decay_norm` is true. They are found by the type of
    their module, since the names of shortcut BNs do not contain "bn". A library's network may name
    further parameters in `undecayed`, such as layer scales. With `adapts` two such groups come
    first with the parameters that LARS or LAMB scales. The parameters in `lr_factors`, by their
    names, come last, in such groups with the LR_FACTOR that it gives. A parameter that several
    modules share is in one group, that of its first name.
    """
    still = undecayed_parameters(model)
    factors = dict.fromkeys((1.0, *lr_factors.values()))
    kinds = itertools.product(factors, (True, False) if adapts else (False,), (True, False))
    members: dict[tuple[float, bool, bool], list[nn.Parameter]] = {kind: [] for kind in kinds}
    for path, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        norm = parameter in still
        weight = not norm and "bias" not in path.rpartition(".")[2]
        decays = decay_norm if norm else weight or decay_bias
        scaled = {
            "all": True, "weights": weight, "decayed": decays and weight_decay > 0, None: False
        }[adapts]  # fmt: skip
        members[lr_factors.get(path, 1.0), scaled, decays].append(parameter)
    groups = []
    for (factor, scaled, decays), parameters in members.items():
        decay = weight_decay if decays else 0.0
        settings = (
            {"weight_decay": 0.0, ADAPTED_DECAY: decay} if scaled else {"weight_decay": decay}
        )
        ratio = {LR_FACTOR: factor} if factor != 1 else {}
        groups.append({"params": parameters, **settings, **ratio})
    return groups


def undecayed_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return a model's parameters without weight decay: those of norms and its `undecayed`.

    A network names the latter itself.
    """
    named: frozenset[str] = getattr(model, "undecayed", frozenset())
    return {
        parameter
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(module, NORM_LAYERS) or f"{path}.{name}".lstrip(".") in named
    }


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings of an optimizer that are the same for all parameter groups."""
    return {key: value for key, value in settings.items() if key not in GROUP_SETTINGS}


def recipe_groups(
    model: nn.Module,
    *,
    name: str,
    weight_decay: float,
    decay_bias: bool,
    adapts: str,
    head_lr: float | None,
    decay_norm: bool = False,
    **_: Any,
) -> list[dict[str, Any]]:
    """Split the trained parameters of a recipe's model into the groups of its optimizer.

    The settings are the fields of its `optim`. With a `head_lr` the model's `lr_factors` apply,
    which have been computed from it.
    """
    adapting = adapts if name in ("lars", "lamb") else None
    factors: dict[str, float] = {} if head_lr is None else model.lr_factors  # type: ignore[assignment]
    return parameter_groups(model, weight_decay, decay_bias, adapting, factors, decay_norm)


def make_optimizer(
    model: nn.Module, *, decay: str = "gradient", full_lr: float = 1.0, **settings: Any
) -> torch.optim.Optimizer:
    """Create a recipe's optimizer for a model, over the parameter groups of recipe_groups.

    The settings are those of recipe_groups and optimizer_over_groups. The lr is set before every
    step, with `set_lr`. A decoupled decay is that at `full_lr`, and proportional to the lr. The
    optimizer skips an update, of parameters and state, if its `found_inf` is 1; a momentum
    correction for a new lr is made all the same. Before an update that may be skipped, and is not
    the last one, create_state has to be called.
    """
    groups = recipe_groups(model, **settings)
    if decay == "decoupled":
        for group in groups:
            ratio = full_lr * group.get(LR_FACTOR, 1.0)
            group[DECOUPLED_DECAY] = group.pop("weight_decay") / ratio
    made = optimizer_over_groups(groups, **shared_settings(settings))
    if decay == "decoupled":
        made.register_step_pre_hook(_decay_weights)
    return made


@torch.no_grad()
def _decay_weights(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Multiply the weights by 1 - decay lr / (full lr), unless the update is skipped.

    So it is in DecoupledSGDW of MosaicML's composer (after Loshchilov and Hutter 2019).
    """
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    for group in optimizer.param_groups:
        share, weights = group["lr"] * group[DECOUPLED_DECAY], group["params"]
        if not share or not weights:
            continue
        if found_inf is None:
            torch._foreach_mul_(weights, 1 - share)
        else:
            is_made = (found_inf == 0).to(weights[0].dtype)
            torch._foreach_mul_(weights, 1 - share * is_made)


def _no_norm() -> Tensor:
    raise ValueError("an optimizer that clips needs the norm of the gradient")


def optimizer_over_groups(
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
    ratio_decay: float | None,
    fused: str,
    bias_correction: bool,
    rms_lr: float,
    beta_center: float,
    beta_period: float,
    options: Mapping[str, Any] = MappingProxyType({}),
    source: str = "",
    norm: Callable[[], Tensor] = _no_norm,
) -> torch.optim.Optimizer:
    """Create a recipe's optimizer for tensors in groups as parameter_groups makes them.

    For clipping it calls `norm` in every step for the norm of the whole gradient, a tensor on the
    device, since its tensors may be only a part. `options` and `source` are those of an optimizer
    of the user's own. Raises UsageError if torch has no fused Adagrad here, or apex no SGD.
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
        case "adamw":
            made = torch.optim.AdamW(groups, lr=0.0, betas=(momentum, beta2), eps=eps, fused=True)
        case "adagrad":
            _check_fused_adagrad([tensor for group in groups for tensor in group["params"]])
            made = torch.optim.Adagrad(groups, lr=0.0, eps=eps, fused=True)
        case "lamb":
            made = Lamb(groups, betas=(momentum, beta2), eps=eps, bias_correction=bias_correction)
        case "rmsprop_warmup":
            made = RMSpropWarmup(
                groups, mu1=momentum, mu2=beta2, eps=eps, rms_lr=rms_lr,
                beta_center=beta_center, beta_period=beta_period,
            )  # fmt: skip
        case _ if is_import_path(name):
            made = _own_optimizer(groups, imported_part(OPTIMIZER, name, source), options)
        case _:
            raise ValueError(name)
    if clip_norm is not None:
        _clip(made, clip_norm, norm)
    if name == "lars":
        _scale_by_trust_ratio(made, trust, eps, ratio_decay)
    return made


def _refuse_closure(part: OwnPart, step: Callable[..., object], *arguments: object) -> None:
    """Raise UsageError for an optimizer whose step needs more than these arguments."""
    try:
        inspect.signature(step).bind(*arguments)
    except TypeError:
        raise UsageError(
            f"{part.override} computes the loss itself by the closure that its step needs, and a "
            "step of lsgd has the gradient only; write an optimizer whose step takes no argument"
        ) from None


def _own_optimizer(
    groups: list[dict[str, Any]], part: OwnPart, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """Create an optimizer of the user's own; raises UsageError if it fails or needs a closure.

    Its lr is set before every step, and is not 0 here, which some refuse.
    """
    if step := getattr(part.make, "step", None):  # of a class, some of which take no groups either
        _refuse_closure(part, step, None)
    made: torch.optim.Optimizer = part(options, params=groups, lr=1.0)
    _refuse_closure(part, made.step)

    def check(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if kinds := sorted(_not_plain(state)):
            raise UsageError(
                f"{part.override} has a {kinds[0]} in its state, which a checkpoint cannot keep; "
                "keep tensors, numbers, texts, lists and dictionaries there"
            )

    made.register_state_dict_post_hook(check)
    return made


PLAIN_TYPES = (Tensor, nn.Parameter, bool, int, float, str, type(None), list, tuple, dict)
"""The types of values that a checkpoint can hold, since its reader executes nothing."""


def _not_plain(value: Any) -> set[str]:
    """Return the names of the types in an optimizer's state that a checkpoint cannot hold."""
    if type(value) not in PLAIN_TYPES:
        return {type(value).__name__}
    inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    parts = inside if isinstance(value, dict | list | tuple) else []
    return {kind for each in parts for kind in _not_plain(each)}


def _check_fused_adagrad(tensors: list[Tensor]) -> None:
    """Raise UsageError unless torch has a fused Adagrad for tensors like the first of these.

    torch has had one on GPUs since 2026.
    """
    for tensor in tensors[:1]:
        probe = torch.zeros(1, dtype=tensor.dtype, device=tensor.device)
        probe.grad = torch.zeros_like(probe)
        try:
            torch.optim.Adagrad([probe], fused=True).step()
        except RuntimeError as error:
            raise UsageError(
                f"torch {torch.__version__} has no fused Adagrad on {tensor.device.type} "
                f"({error}); write device=cpu or optim=adam, or install a newer torch"
            ) from None


def _clip(optimizer: torch.optim.Optimizer, limit: float, norm: Callable[[], Tensor]) -> None:
    """Make an optimizer multiply its gradients by min(1, limit / norm) (Pascanu et al. 2013).

    This is a separate pass over the gradients: the fused kernels could divide them, but only by a
    float32, and a run in float64 would be right to 7 digits.
    """

    def multiply(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"]]
        if gradients:  # a server may have none
            # A norm of 0 makes the quotient infinite, and so the factor 1.
            torch._foreach_mul_(gradients, (limit / norm()).clamp(max=1))

    optimizer.register_step_pre_hook(multiply)


def _scale_by_trust_ratio(
    optimizer: torch.optim.Optimizer, trust: float, eps: float, ratio_decay: float | None
) -> None:
    """Make an optimizer scale each tensor's gradient by LARS (You et al. 2017, equation 6).

        g <- trust |w| / (|g| + decay |w| + eps) (g + decay w)

    If the norm of w or g is 0, there is no ratio and g + decay w is used. A `ratio_decay` replaces
    a decay above 0 in the denominator. One call computes the norms of all tensors, and the
    gradients are changed in place.
    """

    @torch.no_grad()
    def scale(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            decay, weights = group.get(ADAPTED_DECAY), group["params"]
            if decay is None or not weights:
                continue
            gradients = [weight.grad for weight in weights]
            of_weights = torch.stack(torch._foreach_norm(weights))
            of_gradients = torch.stack(torch._foreach_norm(gradients))
            beside = ratio_decay if decay and ratio_decay is not None else decay
            ratios = trust * of_weights / (of_gradients + beside * of_weights + eps)
            ratios = torch.where((of_weights > 0) & (of_gradients > 0), ratios, 1)
            if decay:
                torch._foreach_add_(gradients, weights, alpha=decay)
            torch._foreach_mul_(gradients, ratios.unbind())

    optimizer.register_step_pre_hook(scale)


def initial_state(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return the zero optimizer state of a parameter before its first update.

    It is empty if the optimizer has none, or creates it in the constructor as Adagrad and LAMB do.
    """
    match optimizer:
        case VelocitySGD() if optimizer.defaults["momentum"]:
            names = ["velocity"]
        case torch.optim.Adam():  # also AdamW, a subclass
            names = [STEP_KEY, "exp_avg", "exp_avg_sq"]
        case _ if optimizer.defaults.get("momentum"):  # SGD, torch's or apex's
            names = ["momentum_buffer"]
        case _:
            names = []
    zero = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {name: zero if name == STEP_KEY else torch.zeros_like(parameter) for name in names}


def create_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the zero state of all parameters of an optimizer that has made no update.

    torch's fused SGD creates it in the first update, and leaves it undefined if that is skipped.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if state := initial_state(optimizer, parameter):
                optimizer.state[parameter] = state


def copy_in_layout(
    parameter: Tensor, state: dict[str, Any], *, any_shape: bool = False
) -> dict[str, Any]:
    """Copy the optimizer state of a parameter into the parameter's memory format.

    Fused updates walk memory linearly, and a checkpoint may have another setting of channels_last.
    A tensor of another shape than the parameter's has no layout. They would walk beyond it, so that
    ValueError is raised unless `any_shape` allows it, as for an optimizer of another package.
    """
    for name, value in state.items():
        has_shape = isinstance(value, Tensor) and name != STEP_KEY
        if has_shape and value.shape != parameter.shape and not any_shape:
            raise ValueError(
                f"a parameter group has {name} of shape {tuple(value.shape)} for a parameter of "
                f"shape {tuple(parameter.shape)}"
            )
    return {
        name: torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        if name != STEP_KEY and isinstance(value, Tensor) and value.shape == parameter.shape
        else deepcopy(value)
        for name, value in state.items()
    }


def load_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any], *, is_own: bool) -> None:
    """Load the saved state of an optimizer, in the memory format of its parameters.

    The tensors of one that `is_own`, of another package, keep their types and shapes. It may also
    have entries that belong to no parameter.
    """
    optimizer.load_state_dict(saved)
    # The state_dict of a wrapper of another optimizer may have any form.
    numbers = [each for group in saved.get("param_groups", []) for each in group.get("params", [])]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    known = saved.get("state", {}) if len(numbers) == len(parameters) else {}
    for number, parameter in itertools.zip_longest(numbers, parameters):
        if isinstance(state := optimizer.state.get(parameter), dict):
            if is_own:
                state |= _in_saved_types(state, known.get(number))
            state |= copy_in_layout(parameter, state, any_shape=is_own)


def _in_saved_types(loaded: Any, saved: Any) -> Any:
    """Return loaded optimizer state with each tensor in the dtype in which it was saved.

    torch casts all tensors of a state to the type of the parameter, such as masks and counts.
    """
    match saved:
        case Tensor() if isinstance(loaded, Tensor) and loaded.shape == saved.shape:
            return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
        case dict() if isinstance(loaded, dict) and loaded.keys() == saved.keys():
            return {key: _in_saved_types(loaded[key], each) for key, each in saved.items()}
        case list() | tuple() if type(loaded) is type(saved) and len(loaded) == len(saved):
            return type(saved)(map(_in_saved_types, loaded, saved))
    return loaded


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameter groups of an optimizer for the next update.

    `lr` is that of the schedule, which a group multiplies by its LR_FACTOR.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group[LR_FACTOR] if LR_FACTOR in group else lr


def set_epoch(optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Set the epoch of the next updates, on which the rule of rmsprop_warmup depends."""
    if isinstance(optimizer, RMSpropWarmup):
        optimizer.epoch = epoch


class VelocitySGD(torch.optim.Optimizer):
    """An SGD optimizer of equation (10) of the paper, with the lr inside the momentum buffer.

    Momentum correction is optional. It serves the ablation of remark 2, and LARS. The first lr has
    no predecessor, and the buffer is 0 then.
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
        """Update the parameters, or skip if `found_inf` is 1; gradients are scaled in place.

        A skipped update leaves parameters and velocities, but for the momentum correction.
        """
        for group in self.param_groups:
            lr, last_lr, parameters = group["lr"], group["last_lr"], group["params"]
            group["last_lr"] = lr
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            velocities = self._velocities(parameters) if group["momentum"] else []
            if group["corrected"] and velocities and last_lr not in (0.0, lr):
                # The velocity is corrected before the update. A larger momentum in the update would
                # also change the look-ahead of Nesterov. A skipped update corrects it too, since
                # the next one starts from this lr.
                torch._foreach_mul_(velocities, lr / last_lr)
            # PyTorch's update (9) of lr (g + decay w) with an lr of 1 is equation (10).
            torch._foreach_mul_(gradients, lr)
            update_by_sgd(
                parameters,
                gradients,
                velocities,
                momentum=group["momentum"],
                nesterov=group["nesterov"],
                weight_decay=lr * group["weight_decay"],
                found_inf=self.found_inf,
            )

    def _velocities(self, parameters: list[Tensor]) -> list[Tensor]:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["velocity"] = torch.zeros_like(parameter)
        return [self.state[parameter]["velocity"] for parameter in parameters]
