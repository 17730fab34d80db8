"""Observations of one step: weight decay, gradient scale, momentum, BN, number formats.

Most use a miniature of the run: apart from its optimizer and arithmetic precision, a step does the
same for 3 workers of 4 images in a small network as for the recipe's own.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.check.observation import Observation
from lsgd.comm.single import SingleComm
from lsgd.inputs import Batch
from lsgd.learner import Learner
from lsgd.models import DTYPES
from lsgd.recipe import Averaging, BatchGrowth, Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics, WorkerBatchNorm
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce

WORKERS, IMAGES, SIDE = 3, 4, 8
LEARNING_RATES = (0.1, 0.4, 0.4, 0.04)
"""Learning rates that rise, stay and drop, so that the two equations of momentum differ."""


def observe(learner: Learner) -> list[Observation]:
    """Return observations of a training step: BN, gradient, momentum, decay and number formats.

    Observations of BN are left out for a network without BN.
    """
    recipe = learner.recipe
    has_norms = bool(_norms(learner))
    return [
        _weight_decay(learner),
        *([_batchnorm_decay(learner)] if has_norms else []),
        _momentum(recipe),
        *([_lars(learner)] if recipe.optim.name == "lars" else []),
        _lr_of_a_step(recipe),
        _gradient(recipe),
        _smoothing(recipe),
        *([_batchnorm(learner), _running_average(recipe)] if has_norms else []),
        _precision(learner),
        _compression(learner),
    ]


def miniature(recipe: Recipe) -> Learner:
    """Return a learner that trains as this recipe does, with a small network and few images."""
    data = replace(
        recipe.data,
        train_examples=2 * WORKERS * IMAGES + IMAGES + 2,
        channels=1,
        classes=10,
        image_size=SIDE,
        mean=[0.5],
        std=[0.5],
    )
    # Clipping and LARS change normalised gradients; _momentum and _lars observe them.
    optimizer = replace(recipe.optim, clip_norm=None)
    if optimizer.name == "lars":
        optimizer = replace(optimizer, name="sgd")
    small = replace(
        recipe,
        data=data,
        model=replace(recipe.model, name="small_resnet"),
        optim=optimizer,
        averaging=Averaging(),
        batch_growth=BatchGrowth(),
        workers=WORKERS,
        worker_batch=IMAGES,
        workers_per_pass=2,
        tail="keep",
        precision="float64",
        gradient_compression="none",
        channels_last=False,
        compile=False,
    )
    return Learner(small, SingleComm(), torch.device("cpu"))


def _allreduce(learner: Learner) -> AllReduce:
    """Return the learner's all-reduce strategy, whose reducer and optimizer are examined."""
    assert isinstance(learner.strategy, AllReduce)
    return learner.strategy


def _running(learner: Learner) -> RunningStatistics:
    """Return the running statistics of BN in a miniature learner."""
    [running] = learner.strategy.carried_states
    assert isinstance(running, RunningStatistics)
    return running


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
        + (f"; {len(untouched)} are not trained" if untouched else ""),
        WeightDecayGroups(weights, biases, len(untouched)),
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


def _decays(learner: Learner) -> dict[nn.Parameter, float]:
    """Return the weight decay of each optimized parameter, whether SGD or LARS applies it."""
    return {
        parameter: float(group["weight_decay"] + group.get(optim.LARS_DECAY, 0.0))
        for group in _allreduce(learner).optimizer.param_groups
        for parameter in group["params"]
    }


def _norms(learner: Learner) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in learner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _of_norms(learner: Learner) -> set[nn.Parameter]:
    """Return the parameters gamma and beta of all BN layers of a learner's network."""
    return {p for module in _norms(learner) for p in module.parameters(recurse=False)}


def _by_value(decays: Sequence[float]) -> str:
    kinds = sorted(set(decays), reverse=True)
    return ", ".join(f"{kind:g} on {decays.count(kind)} tensors" for kind in kinds)


def _momentum(recipe: Recipe) -> Observation:
    """Observe which of two equations of momentum SGD a recipe's optimizer follows.

    Equation (10) with momentum correction gives the updates of (9).
    """
    if recipe.optim.name != "sgd":
        return Observation("momentum", f"{recipe.optim.name}, not momentum SGD", None)
    form, nesterov, m = _found_form(_allreduce(miniature(recipe)).optimizer, decayed_gradient)
    run = f"as equation ({form}), " + ("Nesterov" if nesterov else "not Nesterov")
    run = f"{run if form else 'neither equation (9) nor (10)'}, m = {m:g}"
    limit = recipe.optim.clip_norm
    if limit is not None:
        run += f", of gradients shortened to norm {limit:g}"
    return Observation("momentum", run, Momentum(form, nesterov, m, limit))


@dataclass(frozen=True)
class Momentum:
    """An observed update rule of momentum SGD: its equation (0 for an unknown one) and settings."""

    equation: int
    nesterov: bool
    m: float
    clip_norm: float | None


@dataclass(frozen=True)
class Lars:
    """An observed update rule of LARS: its equation (0 for an unknown one) and settings."""

    equation: int
    """The equation: with 9 only the ratio is inside the momentum, with 10 the lr too.
    0 is for gradients that are not scaled as in the paper."""
    nesterov: bool
    m: float
    trust: float
    eps: float
    adapts: frozenset[str]
    """The kinds of tensors whose gradient is scaled: weights, biases, norms."""


def _lars(learner: Learner) -> Observation:
    """Observe which of two equations of LARS an optimizer follows, on a miniature of the recipe."""
    rule, of_norms = learner.recipe.optim, _of_norms(learner)
    optimizer = _lars_of_miniature(learner.recipe)

    def scaled(gradient: Tensor, w: Tensor, group: dict[str, Any]) -> Tensor:
        decay = group.get(optim.LARS_DECAY)
        if decay is None:
            return decayed_gradient(gradient, w, group)
        norm = w.norm()
        ratio = rule.trust * norm / (gradient.norm() + decay * norm + rule.eps)
        found: Tensor = (ratio if norm > 0 else 1) * (gradient + decay * w)
        return found

    form, nesterov, m = _found_form(optimizer, scaled)
    kinds = frozenset(
        "norms" if p in of_norms else "weights" if p.dim() > 1 else "biases"
        for group in _allreduce(learner).optimizer.param_groups
        if optim.LARS_DECAY in group
        for p in group["params"]
    )
    run = f"as equation ({form})" if form else "neither as equation (9) nor as (10)"
    run += f", {'Nesterov' if nesterov else 'not Nesterov'}, m = {m:g}, trust {rule.trust:g}, "
    run += f"eps {rule.eps:g}, of {' and '.join(sorted(kinds, reverse=True))}"
    return Observation("lars", run, Lars(form, nesterov, m, rule.trust, rule.eps, kinds))


def _lars_of_miniature(recipe: Recipe) -> torch.optim.Optimizer:
    """Return the recipe's LARS optimizer over the small network of its miniature."""
    model = miniature(recipe).model
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return optim.make_optimizer(model, **vars(recipe.optim))


GradientTransform = Callable[[Tensor, Tensor, dict[str, Any]], Tensor]
"""A function of a gradient, its weights and parameter group: the term that enters the momentum."""


def decayed_gradient(gradient: Tensor, w: Tensor, group: dict[str, Any]) -> Tensor:
    """Return a gradient with the weight decay of its parameter group added."""
    return gradient + float(group["weight_decay"]) * w


def _found_form(
    optimizer: torch.optim.Optimizer, scaled: GradientTransform
) -> tuple[int, bool, float]:
    """Return which equation of SGD an optimizer follows, whether with Nesterov, and its momentum.

    The equation is found on random gradients; it is 9, 10, or 0 for neither.
    """
    groups = optimizer.param_groups
    cases = [(p, p.detach().clone(), group) for group in groups for p in group["params"]]
    generator = torch.Generator().manual_seed(0)
    gradients = [
        [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p, _, _ in cases]
        for _ in LEARNING_RATES
    ]
    for lr, step in zip(LEARNING_RATES, gradients, strict=True):
        for (parameter, _, _), gradient in zip(cases, step, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        optim.set_lr(optimizer, lr)
        optimizer.step()
    m = groups[0]["momentum"]
    for form, nesterov in product((9, 10), (True, False)):
        expected = (
            weights_by_hand(
                w, [step[i] for step in gradients], LEARNING_RATES, m, group, scaled, form, nesterov
            )
            for i, (_, w, group) in enumerate(cases)
        )
        if all(torch.allclose(p, each) for (p, _, _), each in zip(cases, expected, strict=True)):
            return form, nesterov, m
    return 0, False, m


def weights_by_hand(
    w: Tensor,
    gradients: Sequence[Tensor],
    lrs: Sequence[float],
    m: float,
    group: dict[str, Any],
    scaled: GradientTransform,
    form: int,
    nesterov: bool,
) -> Tensor:
    """Compute the weights after steps of SGD by equation (9) or (10), without an optimizer.

    `scaled` returns what enters the momentum, from a step's gradient, its weights and `group`.
    """
    buffer = torch.zeros_like(w)
    for gradient, lr in zip(gradients, lrs, strict=True):
        g = scaled(gradient, w, group)
        if form == 9:
            buffer = m * buffer + g
            w = w - lr * (g + m * buffer if nesterov else buffer)
        else:
            buffer = m * buffer + lr * g
            w = w - (lr * g + m * buffer if nesterov else buffer)
    return w


def _lr_of_a_step(recipe: Recipe) -> Observation:
    """Observe which learning rate the updates before and after the first drop of it use."""
    learner = miniature(recipe)
    small = learner.recipe
    used: list[float] = []
    _allreduce(learner).optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.extend(group["lr"] for group in optimizer.param_groups)
    )
    lrs = [small.lr(step) for step in range(small.total_steps)]
    drop = next((step for step, lr in enumerate(lrs) if lr < lrs[0]), 1)
    for step in (drop - 1, drop):
        [task] = learner.strategy.tasks(small.locate_step(step)[0], [step])
        train_step(learner, task, _made_up(task.micro_batches))
    groups = len(used) // 2
    same = used == [lrs[drop - 1]] * groups + [lrs[drop]] * groups
    return Observation(
        "lr_of_a_step",
        "the update of a step uses " + ("its lr" if same else "another lr than the step's"),
        same,
    )


def _gradient(recipe: Recipe) -> Observation:
    """Observe the scale of the gradient in a full step, and in a short one of uneven workers."""
    ratios = [_gradient_ratio(recipe, step=step) for step in (0, 2)]
    if all(ratio is not None and abs(ratio - 1) < 1e-9 for ratio in ratios):
        run = "the sum over all images divided by their number"
    elif ratios[0] is None or ratios[1] is None:
        run = "not a multiple of the mean over all images of a step"
    else:
        run = f"{ratios[0]:.3g} times the mean over the kn images of a step (k = {WORKERS}, n = "
        run += f"{IMAGES}), {ratios[1]:.3g} times in a short one"
    return Observation(
        "gradient",
        run,
        run.startswith("the sum"),
    )


def _smoothing(recipe: Recipe) -> Observation:
    share = recipe.label_smoothing
    run = f"{share:g} of a label is spread over all classes" if share else "none"
    return Observation("label_smoothing", run, share)


def _gradient_ratio(recipe: Recipe, *, step: int) -> float | None:
    """Return the ratio of a step's gradient to the mean over its images; None if not parallel.

    The gradient is read as the optimizer receives it, since equation (10) changes it in place.
    """
    learner = miniature(recipe)
    given: list[Tensor] = []
    _allreduce(learner).optimizer.register_step_pre_hook(
        lambda *_: given.extend(p.grad.flatten().clone() for p in parameters if p.grad is not None)
    )
    [task] = learner.strategy.tasks(0, [step])
    running, passes = _running(learner), task.micro_batches
    parameters = list(learner.model.parameters())
    total = torch.zeros(())
    for each, (images, labels) in zip(passes, _made_up(passes), strict=True):
        running.start_micro_batch(each)
        losses = F.cross_entropy(
            learner.model(images),
            labels,
            reduction="none",
            label_smoothing=recipe.label_smoothing,
        )
        total = total + losses.sum()
    mean = torch.autograd.grad(total / sum(len(each.examples) for each in passes), parameters)
    running.pending_update.zero_()
    train_step(learner, task, _made_up(passes))
    expected = torch.cat([gradient.flatten() for gradient in mean])
    actual = torch.cat(given)
    ratio = (actual @ expected / (expected @ expected)).item()
    return ratio if torch.allclose(actual, ratio * expected, rtol=1e-6, atol=1e-12) else None


def _made_up(passes: list[MicroBatch]) -> Iterator[Batch]:
    """Yield random images and labels for micro-batches, the same each time."""
    generator = torch.Generator().manual_seed(0)
    for each in passes:
        shape = (len(each.examples), 1, SIDE, SIDE)
        images = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield images, torch.randint(10, (len(images),), generator=generator)


def _batchnorm(learner: Learner) -> Observation:
    """Observe over which images each BN layer takes its statistics, with two workers."""
    found: dict[str, list[str]] = {}
    for path, module in learner.model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            found.setdefault(_statistics(module), []).append(path)
    others = {run: paths for run, paths in found.items() if run != OF_ONE_WORKER}
    run = next(iter(found)) if len(found) == 1 else ""
    return Observation(
        "batchnorm",
        run or "; ".join(f"{run} in {paths[0]}" for run, paths in others.items()),
        not others,
    )


OF_ONE_WORKER = "over one worker's images, in any pass"


def _statistics(layer: nn.modules.batchnorm._BatchNorm) -> str:
    """Describe over which images a BN layer takes its statistics, found by its outputs."""
    layer = copy.deepcopy(layer).double().eval()
    with torch.no_grad():
        layer.weight.fill_(2)  # a gamma of 0 would make all outputs equal
    after = copy.deepcopy(layer)
    layer.training = True  # but not for layers inside it, such as dropout
    images = _features(layer)[:6]
    if isinstance(layer, WorkerBatchNorm):
        layer.workers, layer.rows_per_image = 2, 1
        layer.seen = images.new_zeros(2, layer.num_features)
    with torch.no_grad():
        output = layer(images)
        workers = [_normalised(images[worker::2], layer) for worker in (0, 1)]
        alone = torch.stack(workers, dim=1).flatten(0, 1)
        together = _normalised(images, layer)
        _make_identity(after)
        if torch.allclose(output, after(alone), atol=1e-9):
            return OF_ONE_WORKER
        if torch.allclose(output, after(together), atol=1e-9):
            return "over all images of a pass"
    return "neither over one worker's images nor over those of a pass"


def _make_identity(layer: nn.modules.batchnorm._BatchNorm) -> None:
    """Change a BN layer to return its input in evaluation, apart from an activation inside it."""
    for tensor, value in (
        (layer.running_mean, 0),
        (layer.running_var, 1 - layer.eps),
        (layer.weight, 1),
        (layer.bias, 0),
    ):
        assert tensor is not None
        tensor.fill_(value)


def _features(layer: nn.modules.batchnorm._BatchNorm) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    size = (5,) if isinstance(layer, nn.BatchNorm1d) else (5, 5)
    shape = (7, layer.num_features, *size)
    # Mean and scale are not 0 and 1, and differ between images, which distinguishes groups.
    return (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        * torch.arange(1.0, 8.0, dtype=torch.float64).reshape(7, 1, *(1 for _ in size))
        + 2
    )


def _normalised(group: Tensor, layer: nn.modules.batchnorm._BatchNorm) -> Tensor:
    over = (0, *range(2, group.dim()))
    mean = group.mean(over, keepdim=True)
    var = group.var(over, correction=0, keepdim=True)
    of_channels = (1, -1, *(1 for _ in over[1:]))
    gamma, beta = (each.reshape(of_channels) for each in (layer.weight, layer.bias))
    return gamma * (group - mean) / (var + layer.eps).sqrt() + beta


def _running_average(recipe: Recipe) -> Observation:
    """Observe the momentum of BN's running statistics, in a step of two workers.

    The old mean and variance are 0 and 1. The share has no meaning if evaluations measure BN.
    """
    if recipe.measures_bn:
        return Observation("running_average", "measured anew before an evaluation", None)
    small = miniature(recipe)
    running = _running(small)
    layer = running.layers[0]
    images = _features(layer)
    with torch.no_grad():
        for group in images.split((4, 3)):  # two passes
            running.start_micro_batch(MicroBatch(0, np.arange(len(group))))
            layer(group)
    running.end_step(active_workers=2)
    small.strategy.synchronize()
    groups = images.split((4, 3))
    mean = torch.stack([group.mean((0, 2, 3)) for group in groups]).mean(0)
    var = torch.stack([group.var((0, 2, 3)) for group in groups]).mean(0)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    remaining = torch.cat((1 - layer.running_mean / mean, (var - layer.running_var) / (var - 1)))
    even = bool(remaining.max() - remaining.min() < 1e-6)
    return Observation(
        "running_average",
        f"momentum {remaining.mean():.3g}, once per step, the mean over workers"
        if even
        else "not a moving average over the steps",
        round(remaining.mean().item(), 6) if even else None,
    )


def _precision(learner: Learner) -> Observation:
    with learner.autocast:
        one = torch.ones(1, 1, dtype=DTYPES[learner.recipe.precision])
        kinds = {(one @ one).dtype, *(p.dtype for p in learner.model.parameters())}
    names = sorted(str(kind).removeprefix("torch.") for kind in kinds)
    return Observation("precision", " and ".join(names), set(names))


def _compression(learner: Learner) -> Observation:
    compresses = _allreduce(learner).reducer.compresses
    run = "fp16 between processes" if compresses else "none"
    return Observation("gradient_compression", run, compresses)
