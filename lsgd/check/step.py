"""Observations of one step: weight decay, momentum, BN's running average, number formats."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lsgd.check.network import norms_of
from lsgd.check.observation import Observation
from lsgd.learner import Learner
from lsgd.models import DTYPES
from lsgd.recipe import Optim, Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.optimizers.lamb import ADAPTED_DECAY
from lsgd.strategy.allreduce import AllReduce


def observe(learner: Learner) -> list[Observation]:
    """Return observations of a training step: decay, momentum, BN and number formats.

    Observations of BN are left out for a network without BN.
    """
    recipe = learner.recipe
    has_norms = bool(norms_of(learner.model.modules()))
    return [
        _weight_decay(learner),
        *([_batchnorm_decay(learner)] if has_norms else []),
        _momentum(recipe),
        *([_lars(learner)] if recipe.optim.name == "lars" else []),
        *([_lamb(learner)] if recipe.optim.name == "lamb" else []),
        *([_rmsprop_warmup(recipe.optim)] if recipe.optim.name == "rmsprop_warmup" else []),
        _clipping(recipe.optim),
        _head_lr(recipe.optim),
        observe_smoothing(recipe.label_smoothing),
        _loss(recipe),
        *([_running_average(learner)] if has_norms else []),
        _precision(learner),
        _compression(learner),
    ]


def _allreduce(learner: Learner) -> AllReduce:
    """Return the learner's all-reduce strategy, whose reducer and optimizer are examined."""
    assert isinstance(learner.strategy, AllReduce)
    return learner.strategy


def _weight_decay(learner: Learner) -> Observation:
    decays, still = _decays(learner), optim.undecayed_parameters(learner.model)
    others = [p for p in learner.model.parameters() if p not in still]
    untouched = [p for p in learner.model.parameters() if p not in decays]
    # Outside of BN, biases have one dimension and weights have more.
    weights = frozenset(decays.get(p, 0.0) for p in others if p.dim() > 1)
    biases = frozenset(decays.get(p, 0.0) for p in others if p.dim() == 1)
    return Observation(
        "weight_decay",
        _by_value([decays.get(p, 0.0) for p in others])
        + (", decoupled from the gradient" if (decoupled := _is_decoupled(learner)) else "")
        + (f"; {len(untouched)} are not trained" if untouched else ""),
        WeightDecayGroups(weights, biases, len(untouched), decoupled),
    )


def _batchnorm_decay(learner: Learner) -> Observation:
    decays, of_norms = _decays(learner), _of_norms(learner)
    return Observation(
        "batchnorm_decay",
        _by_value([decays.get(p, 0.0) for p in of_norms]),
        frozenset(decays.get(p, 0.0) for p in of_norms),
    )


@dataclass(frozen=True)
class WeightDecayGroups:
    """The distinct weight decays of a network's parameters outside of BN."""

    weights: frozenset[float]
    biases: frozenset[float]
    untouched: int
    """The number of parameters that are not trained."""
    decoupled: bool = False
    """Whether the decay is no part of the gradient, as in AdamW."""


def _is_decoupled(learner: Learner) -> bool:
    groups = _allreduce(learner).optimizer.param_groups
    return any(
        group.get("decoupled_weight_decay") or optim.DECOUPLED_DECAY in group for group in groups
    )


def _decays(learner: Learner) -> dict[nn.Parameter, float]:
    """Return the weight decay of each optimized parameter, whether SGD or LARS applies it."""
    return {
        parameter: float(
            group["weight_decay"]
            + group.get(ADAPTED_DECAY, 0.0)
            + learner.recipe.optim.weight_decay * (group.get(optim.DECOUPLED_DECAY, 0.0) > 0)
        )
        for group in _allreduce(learner).optimizer.param_groups
        for parameter in group["params"]
    }


def _of_norms(learner: Learner) -> set[nn.Parameter]:
    """Return the parameters gamma and beta of all BN layers of a learner's network."""
    return {
        p for module in norms_of(learner.model.modules()) for p in module.parameters(recurse=False)
    }


def _by_value(decays: Sequence[float]) -> str:
    kinds = sorted(set(decays), reverse=True)
    return ", ".join(f"{kind:g} on {decays.count(kind)} tensors" for kind in kinds)


def _momentum(recipe: Recipe) -> Observation:
    rule = recipe.optim
    if rule.name != "sgd":
        return Observation("momentum", f"{rule.name}, not momentum SGD", None)
    run = _in_words(rule)
    if rule.clip_norm is not None:
        run += f", of gradients shortened to norm {rule.clip_norm:g}"
    found = Momentum(_equation(rule), rule.nesterov, rule.momentum, rule.clip_norm)
    return Observation("momentum", run, found)


def _lars(learner: Learner) -> Observation:
    rule, kinds = learner.recipe.optim, _adapted_kinds(learner)
    run = f"{_in_words(rule)}, trust {rule.trust:g}, eps {rule.eps:g}, of "
    run += " and ".join(sorted(kinds, reverse=True))
    if rule.ratio_decay is not None:
        run += f", with decay {rule.ratio_decay:g} in the ratio"
    found = Lars(
        _equation(rule), rule.nesterov, rule.momentum, rule.trust, rule.eps, kinds, rule.ratio_decay
    )
    return Observation("lars", run, found)


def _adapted_kinds(learner: Learner) -> frozenset[str]:
    """Return the kinds of tensors that LARS or LAMB scales: weights, biases, norms."""
    of_norms = _of_norms(learner)
    return frozenset(
        "norms" if p in of_norms else "weights" if p.dim() > 1 else "biases"
        for group in _allreduce(learner).optimizer.param_groups
        if ADAPTED_DECAY in group
        for p in group["params"]
    )


def _lamb(learner: Learner) -> Observation:
    rule, kinds = learner.recipe.optim, _adapted_kinds(learner)
    corrected = "with" if rule.bias_correction else "without"
    run = f"beta {rule.momentum:g} and {rule.beta2:g}, eps {rule.eps:g}, {corrected} bias "
    run += f"correction, of {' and '.join(sorted(kinds, reverse=True)) or 'no tensor'}"
    found = rule.momentum, rule.beta2, rule.eps, rule.bias_correction, kinds
    return Observation("lamb", run, found)


def _clipping(rule: Optim) -> Observation:
    limit = rule.clip_norm
    run = "none" if limit is None else f"the mean of all workers, to norm {limit:g}"
    return Observation("clip_norm", run, limit)


def _head_lr(rule: Optim) -> Observation:
    lr = rule.head_lr
    run = "that of the others" if lr is None else f"the last layer has the reference lr {lr:g}"
    return Observation("head_lr", run, lr)


def _rmsprop_warmup(rule: Optim) -> Observation:
    found = (
        rule.momentum, rule.beta2, rule.eps, rule.rms_lr, rule.beta_center, rule.beta_period
    )  # fmt: skip
    run = f"mu {rule.momentum:g} and {rule.beta2:g}, eps {rule.eps:g}, lr {rule.rms_lr:g} of "
    run += f"RMSprop, center {rule.beta_center:g} and period {rule.beta_period:g} epochs"
    return Observation("rmsprop_warmup", run, found)


def _equation(rule: Optim) -> int:
    """Return the equation of an optimizer's updates; with momentum correction (10) becomes (9)."""
    return 9 if rule.momentum_correction else rule.equation


def _in_words(rule: Optim) -> str:
    lookahead = "Nesterov" if rule.nesterov else "not Nesterov"
    return f"as equation ({_equation(rule)}), {lookahead}, m = {rule.momentum:g}"


@dataclass(frozen=True)
class Momentum:
    """The update rule of momentum SGD that a recipe has: its equation and settings."""

    equation: int
    nesterov: bool
    m: float
    clip_norm: float | None


@dataclass(frozen=True)
class Lars:
    """The update rule of LARS that a recipe has: its equation and settings."""

    equation: int
    """The equation: with 9 only the ratio is inside the momentum, with 10 the lr too."""
    nesterov: bool
    m: float
    trust: float
    eps: float
    adapts: frozenset[str]
    """The kinds of tensors whose gradient is scaled: weights, biases, norms."""
    ratio_decay: float | None = None
    """The weight decay in the denominator of the ratio; None for that of the weights."""


def observe_smoothing(share: float, place: str = "") -> Observation:
    """Observe the share of a label that is spread over all classes."""
    run = f"{share:g} of a label is spread over all classes" if share else "none"
    return Observation("label_smoothing", run, share, place)


def _loss(recipe: Recipe) -> Observation:
    over = recipe.bce_over_classes if recipe.loss == "bce" else ""
    run = f"binary cross-entropy, {over} over classes" if over else recipe.loss.replace("_", "-")
    return Observation("loss", run, (recipe.loss, over))


def _running_average(learner: Learner) -> Observation:
    """Observe the momentum of BN's running statistics, which evaluations that measure BN ignore."""
    moving = [s for s in learner.strategy.carried_states if isinstance(s, RunningStatistics)]
    if not moving:  # all layers are frozen
        return Observation("running_average", "frozen, as given", None)
    if learner.recipe.measures_bn:
        return Observation("running_average", "measured again before an evaluation", None)
    momentum = 1 - moving[0].momentum
    run = f"momentum {momentum:.3g}, once per step, the mean over workers"
    return Observation("running_average", run, momentum)


def _precision(learner: Learner) -> Observation:
    with learner.autocast:
        one = torch.ones(1, 1, dtype=DTYPES[learner.recipe.precision])
        kinds = {(one @ one).dtype, *(p.dtype for p in learner.model.parameters())}
    names = sorted(str(kind).removeprefix("torch.") for kind in kinds)
    scaled = _allreduce(learner).reducer.loss_scale is not None
    if learner.recipe.precision == "tf32":  # products of float32 numbers, which only GPUs make
        names.append("tf32")
    run = " and ".join(names) + ", with a dynamic loss scale" * scaled
    if learner.recipe.evaluation.bfloat16 and "bfloat16" not in names:
        names.append("bfloat16")
        run += ", evaluated in bfloat16"
    return Observation("precision", run, set(names))


def _compression(learner: Learner) -> Observation:
    compresses = _allreduce(learner).reducer.compresses
    run = "fp16 between processes" if compresses else "none"
    return Observation("gradient_compression", run, compresses)
