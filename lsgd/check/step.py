"""Checks of one step: weight decay, normalisation of the gradient, momentum, BN, number formats.

Most are made on a miniature of the run: apart from its optimizer and precision of arithmetic, what
a step does is the same for 3 workers of 4 images in a small network as for the recipe's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lsgd.check.finding import Finding
from lsgd.comm.single import SingleComm
from lsgd.inputs import Batch
from lsgd.learner import Learner
from lsgd.models import DTYPES
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.sampler import Pass
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce

WORKERS, IMAGES, SIDE = 3, 4, 8
RATES = (0.1, 0.4, 0.4, 0.04)
"""Learning rates that rise, stand still and drop, so that the forms of momentum differ."""


def findings(learner: Learner) -> list[Finding]:
    """The rules of sections 2.3, 3 and 5.1: BN, gradient, momentum, decay and number formats.

    Those of BN are left out of a network that has none.
    """
    recipe = learner.recipe
    has_norms = bool(_norms(learner))
    return [
        _weight_decay(learner),
        *([_batchnorm_decay(learner)] if has_norms else []),
        _momentum(recipe),
        _lr_of_a_step(recipe),
        _gradient(recipe),
        *([_smoothing(recipe)] if recipe.label_smoothing else []),
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
    # Both change gradients after they have been normalised; _momentum names them.
    optimizer = replace(recipe.optim, clip_norm=None)
    if optimizer.name == "lars":
        optimizer = replace(optimizer, name="sgd")
    small = replace(
        recipe,
        data=data,
        model=replace(recipe.model, name="small_resnet"),
        optim=optimizer,
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


def _weight_decay(learner: Learner) -> Finding:
    decays, of_norms = _decays(learner), _of_norms(learner)
    others = [p for p in learner.model.parameters() if p not in of_norms]
    untouched = [p for p in learner.model.parameters() if p not in decays]
    return Finding(
        "weight_decay",
        "3, 5.1",
        "1e-4 of conv and fc weights, by the optimizer and not scaled with k",
        _by_value([decays.get(p, 0.0) for p in others])
        + (f"; {len(untouched)} are not trained" if untouched else ""),
        {decays.get(p) for p in others} == {1e-4} and not untouched,
    )


def _batchnorm_decay(learner: Learner) -> Finding:
    decays, of_norms = _decays(learner), _of_norms(learner)
    return Finding(
        "batchnorm_decay",
        "5.1",
        "none on gamma and beta of any BN",
        _by_value([decays.get(p, 0.0) for p in of_norms]),
        not any(decays.get(p) for p in of_norms),
    )


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


def _momentum(recipe: Recipe) -> Finding:
    """The optimizer against both equations; (10) with momentum correction moves as (9) does."""
    paper = "equation (9), Nesterov, m = 0.9; a change of lr leaves the momentum as it is"
    if recipe.optim.name != "sgd":
        return Finding("momentum", "3, 5.1", paper, f"{recipe.optim.name}, not momentum SGD", False)
    learner = miniature(recipe)
    optimizer = _allreduce(learner).optimizer
    groups = optimizer.param_groups
    cases = [(p, p.detach().clone(), g["weight_decay"]) for g in groups for p in g["params"]]
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
    forms = product((9, 10), (True, False))
    form, nesterov = next(
        (
            (form, nesterov)
            for form, nesterov in forms
            if all(
                torch.allclose(p, _by_hand(w, [s[i] for s in gradients], m, decay, form, nesterov))
                for i, (p, w, decay) in enumerate(cases)
            )
        ),
        (0, False),
    )
    run = f"as equation ({form}), " + ("Nesterov" if nesterov else "not Nesterov")
    run = f"{run if form else 'neither equation (9) nor (10)'}, m = {m:g}"
    limit = recipe.optim.clip_norm
    if limit is not None:
        run += f", of gradients shortened to norm {limit:g}"
    same = form == 9 and nesterov and m == 0.9 and limit is None
    return Finding("momentum", "3, 5.1", paper, run, same)


def _by_hand(
    w: Tensor, gradients: list[Tensor], m: float, decay: float, form: int, nesterov: bool
) -> Tensor:
    """The weights after steps with these gradients at RATES, by equation (9) or (10)."""
    buffer = torch.zeros_like(w)
    for gradient, lr in zip(gradients, RATES, strict=True):
        g = gradient + decay * w
        if form == 9:
            buffer = m * buffer + g
            w = w - lr * (g + m * buffer if nesterov else buffer)
        else:
            buffer = m * buffer + lr * g
            w = w - (lr * g + m * buffer if nesterov else buffer)
    return w


def _lr_of_a_step(recipe: Recipe) -> Finding:
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
        [task] = learner.strategy.tasks(step // small.steps_per_epoch, [step])
        train_step(learner, task, _made_up(task.passes))
    groups = len(used) // 2
    same = used == [lrs[drop - 1]] * groups + [lrs[drop]] * groups
    return Finding(
        "lr_of_a_step",
        "2.2",
        "the update of a step uses the lr of that step",
        "the update of a step uses " + ("its lr" if same else "another lr than the step's"),
        same,
    )


def _gradient(recipe: Recipe) -> Finding:
    """The scale of `.grad` after a full step, and after a short one of uneven workers."""
    ratios = [_gradient_ratio(recipe, step=step) for step in (0, 2)]
    if all(ratio is not None and abs(ratio - 1) < 1e-9 for ratio in ratios):
        run = "the sum over all images divided by their number"
    elif ratios[0] is None or ratios[1] is None:
        run = "not a multiple of the mean over all images of a step"
    else:
        run = f"{ratios[0]:.3g} times the mean over the kn images of a step (k = {WORKERS}, n = "
        run += f"{IMAGES}), {ratios[1]:.3g} times in a short one"
    return Finding(
        "gradient",
        "3",
        "normalised by kn, not n; without weight decay",
        run,
        run.startswith("the sum"),
    )


def _smoothing(recipe: Recipe) -> Finding:
    """The paper has none; a recipe without has no occasion to be asked."""
    return Finding(
        "label_smoothing",
        "5.1",
        "none: the loss is the cross-entropy of the labels as they are",
        f"{recipe.label_smoothing:g} of a label is spread over all classes",
        False,
    )


def _gradient_ratio(recipe: Recipe, *, step: int) -> float | None:
    """The gradient of a step over the mean of all its images' gradients, if it is parallel."""
    learner = miniature(recipe)
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
    actual = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    ratio = (actual @ expected / (expected @ expected)).item()
    return ratio if torch.allclose(actual, ratio * expected, rtol=1e-6, atol=1e-12) else None


def _made_up(passes: list[Pass]) -> Iterator[Batch]:
    """Batches of noise, the same for the same passes."""
    generator = torch.Generator().manual_seed(0)
    for each in passes:
        shape = (len(each.examples), 1, SIDE, SIDE)
        images = torch.randn(shape, generator=generator, dtype=torch.float64)
        yield images, torch.randint(10, (len(images),), generator=generator)


def _batchnorm(learner: Learner) -> Finding:
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
    return Finding(
        "batchnorm",
        "2.3",
        "statistics over one worker's n images, never shared",
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


def _running_average(recipe: Recipe) -> Finding:
    """The share of the old mean and variance, 0 and 1, that is left after a step of two workers."""
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
    return Finding(
        "running_average",
        "5.1",
        "momentum 0.9, once per step",
        f"momentum {remaining.mean():.3g}, once per step, the mean over workers"
        if even
        else "not a moving average over the steps",
        even and abs(remaining.mean().item() - 0.9) < 1e-6,
    )


def _precision(learner: Learner) -> Finding:
    with learner.autocast:
        one = torch.ones(1, 1, dtype=DTYPES[learner.recipe.precision])
        kinds = {(one @ one).dtype, *(p.dtype for p in learner.model.parameters())}
    names = sorted(str(kind).removeprefix("torch.") for kind in kinds)
    return Finding("precision", "4", "float32", " and ".join(names), kinds == {torch.float32})


def _compression(learner: Learner) -> Finding:
    run = "fp16 between processes" if _allreduce(learner).reducer.compresses else "none"
    return Finding(
        "gradient_compression", "4", "none: gradients are summed as float32", run, run == "none"
    )
