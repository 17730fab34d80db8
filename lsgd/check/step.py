"""Checks of one step: weight decay, normalisation of the gradient, momentum, BN, number formats.

Most are made on a miniature of the run: apart from its optimizer and precision of arithmetic, what
a step does is the same for 3 workers of 4 images in a small network as for the recipe's own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.check.finding import Fact
from lsgd.comm.single import SingleComm
from lsgd.inputs import Batch
from lsgd.learner import Learner
from lsgd.models import DTYPES
from lsgd.recipe import Averaging, BatchGrowth, Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.sampler import Pass
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce

WORKERS, IMAGES, SIDE = 3, 4, 8
RATES = (0.1, 0.4, 0.4, 0.04)
"""Learning rates that rise, stand still and drop, so that the forms of momentum differ."""


def facts(learner: Learner) -> list[Fact]:
    """BN, gradient, momentum, decay and number formats; without BN what there is of the others."""
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
    """A learner that makes the steps of this recipe at the size of a few images."""
    data = replace(
        recipe.data,
        train_examples=2 * WORKERS * IMAGES + IMAGES + 2,
        channels=1,
        classes=10,
        image_size=SIDE,
        mean=[0.5],
        std=[0.5],
    )
    # Both change gradients after they have been normalised; _momentum and _lars name them.
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
    """The strategy, whose reducer and optimizer are examined."""
    assert isinstance(learner.strategy, AllReduce)
    return learner.strategy


def _running(learner: Learner) -> RunningStatistics:
    """BN's running statistics, all that the workers of the miniature carry along."""
    [running] = learner.strategy.parts
    assert isinstance(running, RunningStatistics)
    return running


def _weight_decay(learner: Learner) -> Fact:
    decays, of_norms = _decays(learner), _of_norms(learner)
    others = [p for p in learner.model.parameters() if p not in of_norms]
    untouched = [p for p in learner.model.parameters() if p not in decays]
    # Of what is not of BN, biases have one dimension and weights have more.
    weights = frozenset(decays.get(p, 0.0) for p in others if p.dim() > 1)
    biases = frozenset(decays.get(p, 0.0) for p in others if p.dim() == 1)
    return Fact(
        "weight_decay",
        _by_value([decays.get(p, 0.0) for p in others])
        + (f"; {len(untouched)} are not trained" if untouched else ""),
        Decays(weights, biases, len(untouched)),
    )


def _batchnorm_decay(learner: Learner) -> Fact:
    decays, of_norms = _decays(learner), _of_norms(learner)
    return Fact(
        "batchnorm_decay",
        _by_value([decays.get(p, 0.0) for p in of_norms]),
        frozenset(decays.get(p, 0.0) for p in of_norms),
    )


@dataclass(frozen=True)
class Decays:
    """The decays of parameters that are not of BN."""

    weights: frozenset[float]
    biases: frozenset[float]
    untouched: int
    """The parameters that are not trained at all."""


def _decays(learner: Learner) -> dict[nn.Parameter, float]:
    """The decay of each parameter that the optimizer has, or that LARS adds before it."""
    return {
        parameter: float(group["weight_decay"] + group.get(optim.LARS_DECAY, 0.0))
        for group in _allreduce(learner).optimizer.param_groups
        for parameter in group["params"]
    }


def _norms(learner: Learner) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in learner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def _of_norms(learner: Learner) -> set[nn.Parameter]:
    """Gamma and beta, which are recognised by the type of their module."""
    return {p for module in _norms(learner) for p in module.parameters(recurse=False)}


def _by_value(decays: Sequence[float]) -> str:
    kinds = sorted(set(decays), reverse=True)
    return ", ".join(f"{kind:g} on {decays.count(kind)} tensors" for kind in kinds)


def _momentum(recipe: Recipe) -> Fact:
    """The optimizer against both equations; (10) with momentum correction moves as (9) does."""
    if recipe.optim.name != "sgd":
        return Fact("momentum", f"{recipe.optim.name}, not momentum SGD", None)
    form, nesterov, m = _found_form(_allreduce(miniature(recipe)).optimizer, _gradient_itself)
    run = f"as equation ({form}), " + ("Nesterov" if nesterov else "not Nesterov")
    run = f"{run if form else 'neither equation (9) nor (10)'}, m = {m:g}"
    limit = recipe.optim.clip_norm
    if limit is not None:
        run += f", of gradients shortened to norm {limit:g}"
    return Fact("momentum", run, Momentum(form, nesterov, m, limit))


@dataclass(frozen=True)
class Momentum:
    """How SGD updates: the equation, 0 if it is neither, and what else there is to choose."""

    equation: int
    nesterov: bool
    m: float
    clip_norm: float | None


@dataclass(frozen=True)
class Lars:
    """How LARS updates, if its gradients are scaled as in its paper; else the equation is 0."""

    equation: int
    """9 has the ratio alone in the momentum, 10 the lr too."""
    nesterov: bool
    m: float
    trust: float
    eps: float
    adapts: frozenset[str]
    """The kinds of tensors that are scaled: weights, biases, norms."""


def _lars(learner: Learner) -> Fact:
    """The optimizer of a miniature against the paper's rule behind both equations."""
    rule, of_norms = learner.recipe.optim, _of_norms(learner)
    optimizer = _lars_of_miniature(learner.recipe)

    def scaled(gradient: Tensor, w: Tensor, group: dict[str, Any]) -> Tensor:
        decay = group.get(optim.LARS_DECAY)
        if decay is None:
            return _gradient_itself(gradient, w, group)
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
    return Fact("lars", run, Lars(form, nesterov, m, rule.trust, rule.eps, kinds))


def _lars_of_miniature(recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of this recipe over the network of its miniature."""
    model = miniature(recipe).model
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return optim.make_optimizer(model, **vars(recipe.optim))


Scaled = Callable[[Tensor, Tensor, dict[str, Any]], Tensor]
"""What a gradient becomes, with the weights and the group of its tensor, before the momentum."""


def _gradient_itself(gradient: Tensor, w: Tensor, group: dict[str, Any]) -> Tensor:
    return gradient + float(group["weight_decay"]) * w


def _found_form(optimizer: torch.optim.Optimizer, scaled: Scaled) -> tuple[int, bool, float]:
    """The equation by which it makes steps of made-up gradients, 0 for neither, Nesterov and m."""
    groups = optimizer.param_groups
    cases = [(p, p.detach().clone(), group) for group in groups for p in group["params"]]
    generator = torch.Generator().manual_seed(0)
    gradients = [
        [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p, _, _ in cases]
        for _ in RATES
    ]
    for lr, step in zip(RATES, gradients, strict=True):
        for (parameter, _, _), gradient in zip(cases, step, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        optim.set_lr(optimizer, lr)
        optimizer.step()
    m = groups[0]["momentum"]
    for form, nesterov in product((9, 10), (True, False)):
        expected = (
            _by_hand(w, [step[i] for step in gradients], m, group, scaled, form, nesterov)
            for i, (_, w, group) in enumerate(cases)
        )
        if all(torch.allclose(p, each) for (p, _, _), each in zip(cases, expected, strict=True)):
            return form, nesterov, m
    return 0, False, m


def _by_hand(
    w: Tensor,
    gradients: list[Tensor],
    m: float,
    group: dict[str, Any],
    scaled: Scaled,
    form: int,
    nesterov: bool,
) -> Tensor:
    """The weights after steps with these gradients at RATES, by equation (9) or (10)."""
    buffer = torch.zeros_like(w)
    for gradient, lr in zip(gradients, RATES, strict=True):
        g = scaled(gradient, w, group)
        if form == 9:
            buffer = m * buffer + g
            w = w - lr * (g + m * buffer if nesterov else buffer)
        else:
            buffer = m * buffer + lr * g
            w = w - (lr * g + m * buffer if nesterov else buffer)
    return w


def _lr_of_a_step(recipe: Recipe) -> Fact:
    """The lr at the moment of the update, on both sides of the first drop."""
    learner = miniature(recipe)
    small = learner.recipe
    used: list[float] = []
    _allreduce(learner).optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.extend(group["lr"] for group in optimizer.param_groups)
    )
    lrs = [small.lr(step) for step in range(small.total_steps)]
    drop = next((step for step, lr in enumerate(lrs) if lr < lrs[0]), 1)
    for step in (drop - 1, drop):
        [task] = learner.strategy.tasks(small.place(step)[0], [step])
        train_step(learner, task, _made_up(task.passes))
    groups = len(used) // 2
    same = used == [lrs[drop - 1]] * groups + [lrs[drop]] * groups
    return Fact(
        "lr_of_a_step",
        "the update of a step uses " + ("its lr" if same else "another lr than the step's"),
        same,
    )


def _gradient(recipe: Recipe) -> Fact:
    """The scale of `.grad` after a full step, and after a short one of uneven workers."""
    ratios = [_gradient_ratio(recipe, step=step) for step in (0, 2)]
    if all(ratio is not None and abs(ratio - 1) < 1e-9 for ratio in ratios):
        run = "the sum over all images divided by their number"
    elif ratios[0] is None or ratios[1] is None:
        run = "not a multiple of the mean over all images of a step"
    else:
        run = f"{ratios[0]:.3g} times the mean over the kn images of a step (k = {WORKERS}, n = "
        run += f"{IMAGES}), {ratios[1]:.3g} times in a short one"
    return Fact(
        "gradient",
        run,
        run.startswith("the sum"),
    )


def _smoothing(recipe: Recipe) -> Fact:
    share = recipe.label_smoothing
    run = f"{share:g} of a label is spread over all classes" if share else "none"
    return Fact("label_smoothing", run, share)


def _gradient_ratio(recipe: Recipe, *, step: int) -> float | None:
    """The gradient of a step over the mean of all its images' gradients, if it is parallel.

    As the optimizer is given it; by equation (10) it is changed where it is.
    """
    learner = miniature(recipe)
    given: list[Tensor] = []
    _allreduce(learner).optimizer.register_step_pre_hook(
        lambda *_: given.extend(p.grad.flatten().clone() for p in parameters if p.grad is not None)
    )
    [task] = learner.strategy.tasks(0, [step])
    running, passes = _running(learner), task.passes
    parameters = list(learner.model.parameters())
    total = torch.zeros(())
    for each, (images, labels) in zip(passes, _made_up(passes), strict=True):
        running.start_pass(each)
        losses = F.cross_entropy(
            learner.model(images),
            labels,
            reduction="none",
            label_smoothing=recipe.label_smoothing,
        )
        total = total + losses.sum()
    mean = torch.autograd.grad(total / sum(len(each.examples) for each in passes), parameters)
    running.seen.zero_()
    train_step(learner, task, _made_up(passes))
    expected = torch.cat([gradient.flatten() for gradient in mean])
    actual = torch.cat(given)
    ratio = (actual @ expected / (expected @ expected)).item()
    return ratio if torch.allclose(actual, ratio * expected, rtol=1e-6, atol=1e-12) else None


def _made_up(passes: list[Pass]) -> Iterator[Batch]:
    """Batches of noise, the same for the same passes."""
    generator = torch.Generator().manual_seed(0)
    for each in passes:
        shape = (len(each.examples), 1, SIDE, SIDE)
        images = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield images, torch.randint(10, (len(images),), generator=generator)


def _batchnorm(learner: Learner) -> Fact:
    """The statistics of a layer of the miniature, for 3 images of each of two workers in a pass."""
    small = miniature(learner.recipe)
    layer = _norms(small)[0]
    kinds = {type(norm) for norm in _norms(learner)}
    images = _features(layer)[:6]
    _running(small).start_pass(Pass(0, np.arange(6), range(2)))
    with torch.no_grad():
        output = layer(images)
        workers = [_normalised(images[worker::2], layer) for worker in (0, 1)]
        alone = torch.stack(workers, dim=1).flatten(0, 1)
        together = _normalised(images, layer)
    if kinds != {type(layer)}:
        run = "not all BNs are of one kind"
    elif torch.allclose(output, alone, atol=1e-9):
        run = "over one worker's images, in any pass"
    elif torch.allclose(output, together, atol=1e-9):
        run = "over all images of a pass"
    else:
        run = "neither over one worker's images nor over those of a pass"
    return Fact(
        "batchnorm",
        run,
        run.startswith("over one"),
    )


def _features(layer: nn.modules.batchnorm._BatchNorm) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (7, layer.num_features, 5, 5)
    # Mean and scale are not 0 and 1, and differ between images: so groups are told apart.
    return (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        * torch.arange(1.0, 8.0, dtype=torch.float64).reshape(7, 1, 1, 1)
        + 2
    )


def _normalised(group: Tensor, layer: nn.modules.batchnorm._BatchNorm) -> Tensor:
    mean = group.mean((0, 2, 3), keepdim=True)
    var = group.var((0, 2, 3), correction=0, keepdim=True)
    gamma, beta = (each.reshape(1, -1, 1, 1) for each in (layer.weight, layer.bias))
    return gamma * (group - mean) / (var + layer.eps).sqrt() + beta


def _running_average(recipe: Recipe) -> Fact:
    """The share of the old mean and variance, 0 and 1, that is left after a step of two workers.

    Without meaning where evaluations do not use them.
    """
    if recipe.measures_bn:
        return Fact("running_average", "measured anew before an evaluation", None)
    small = miniature(recipe)
    running = _running(small)
    layer = running.layers[0]
    images = _features(layer)
    with torch.no_grad():
        for group in images.split((4, 3)):  # two passes
            running.start_pass(Pass(0, np.arange(len(group))))
            layer(group)
    running.end_step(active_workers=2)
    small.strategy.settle()
    groups = images.split((4, 3))
    mean = torch.stack([group.mean((0, 2, 3)) for group in groups]).mean(0)
    var = torch.stack([group.var((0, 2, 3)) for group in groups]).mean(0)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    remaining = torch.cat((1 - layer.running_mean / mean, (var - layer.running_var) / (var - 1)))
    even = bool(remaining.max() - remaining.min() < 1e-6)
    return Fact(
        "running_average",
        f"momentum {remaining.mean():.3g}, once per step, the mean over workers"
        if even
        else "not a moving average over the steps",
        round(remaining.mean().item(), 6) if even else None,
    )


def _precision(learner: Learner) -> Fact:
    with learner.autocast:
        one = torch.ones(1, 1, dtype=DTYPES[learner.recipe.precision])
        kinds = {(one @ one).dtype, *(p.dtype for p in learner.model.parameters())}
    names = sorted(str(kind).removeprefix("torch.") for kind in kinds)
    return Fact("precision", " and ".join(names), set(names))


def _compression(learner: Learner) -> Fact:
    compresses = _allreduce(learner).reducer.compresses
    run = "fp16 between processes" if compresses else "none"
    return Fact("gradient_compression", run, compresses)
