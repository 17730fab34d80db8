"""Observations of the images of a step, of evaluations, and of the final metric."""

import numpy as np

from lsgd.check.observation import Observation
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.metric import TOP1
from lsgd.rules.sampler import MicroBatch


def observe(learner: Learner) -> list[Observation]:
    """Return observations of a run's minibatches, and of how it is evaluated and judged."""
    recipe = learner.recipe
    ends = [0, recipe.steps_per_epoch - 1]
    first, last = [task.micro_batches for task in learner.strategy.tasks(0, ends)]
    return [
        _worker_batch(first),
        _tail(recipe, first, last),
        _evaluation_epochs(recipe),
        *observe_settings(recipe),
        _metric(learner),
    ]


def _worker_batch(step: list[MicroBatch]) -> Observation:
    """Observe the number of images per worker in an epoch's first step (the last may be short)."""
    sizes = {each.by_worker.shape[1] for each in step}
    n = " or ".join(map(str, sorted(sizes)))
    return Observation(
        "worker_batch",
        f"n = {n} in each of k = {sum(len(each.workers) for each in step)} workers",
        sizes,
    )


def _tail(recipe: Recipe, first: list[MicroBatch], last: list[MicroBatch]) -> Observation:
    """Observe the images of the first and the last step of an epoch, and those in no step."""
    full, short = (sum(len(each.examples) for each in step) for step in (first, last))
    left = recipe.data.train_examples - (recipe.steps_per_epoch - 1) * full - short
    counts = {full, short}
    return Observation(
        "tail",
        f"steps of {' and '.join(map(str, sorted(counts)))}; {left} images are left for another "
        "epoch",
        counts == {recipe.batch_size},
    )


def _evaluation_epochs(recipe: Recipe) -> Observation:
    """Observe the numbers of epochs between evaluations, without the final evaluation."""
    after = [epoch for epoch in range(recipe.epochs - 1) if recipe.evaluates_after(epoch)]
    gaps = set(np.diff(after).tolist()) or {recipe.evaluation.epochs}
    every = " or ".join(map(str, sorted(gaps)))
    run = "every epoch" if gaps == {1} else f"every {every} epochs, and the last one"
    return Observation("evaluation_epochs", f"after {run}", gaps)


def observe_settings(recipe: Recipe) -> list[Observation]:
    """Observe the settings that change images, minibatches or evaluations during a run."""
    balance, stages = recipe.data.balance, recipe.stages
    sizes = [stage.batch_size for stage in stages]
    grown = [f", {stage.batch_size} from epoch {stage.epoch}" for stage in stages[1:]]
    phases = [(stage.epoch, stage.workers, stage.worker_batch) for stage in stages]
    shown = ", ".join(f"{k} x {n} from {epoch}" for epoch, k, n in phases)
    changes = [*recipe.size_changes]
    sides = ", ".join(f"{side} from {epoch}" for epoch, side in changes[:3])
    sides += ", …" * (len(changes) > 3)
    mirrors = recipe.evaluation.mirror
    balances = {
        "none": "none",
        "weights": "data.balance=weights: the loss of an image is weighted by its class",
        "sampler": "data.balance=sampler: images are drawn with replacement, by class",
    }
    alphas = {"mixup": recipe.data.mixup, "CutMix": recipe.data.cutmix}
    mixed = " or ".join(f"{name} of alpha {alpha:g}" for name, alpha in alphas.items() if alpha)
    return [
        _averaging(recipe),
        Observation("batch_growth", f"{sizes[0]} images in a step" + "".join(grown), sizes),
        Observation("phases", f"{shown}, in epochs", phases),
        Observation("image_sizes", f"{sides}, in pixels and epochs", changes),
        Observation(
            "mirror",
            "logits are the mean with those of the mirror image" if mirrors else "none",
            mirrors,
        ),
        Observation("balance", balances[balance], balance),
        Observation("mixing", mixed or "none", (*alphas.values(),)),
    ]


def _averaging(recipe: Recipe) -> Observation:
    """Observe the average of the weights that is evaluated, with its constants."""
    rule, constants = recipe.averaging, ""
    found: tuple[object, ...] = (rule.name,)
    if rule.name == "ema":
        found += (rule.half_life, rule.every)
        constants = f" with a half-life of {rule.half_life:g} steps, taken every {rule.every}"
    if rule.name == "last":
        found += (rule.epochs,)
        constants = f" of {rule.epochs} epochs"
    run = f"averaging={rule.name}: evaluations are of averages{constants}"
    return Observation("averaging", "none" if found == ("none",) else run, found)


def _metric(learner: Learner) -> Observation:
    """Observe the definition of the final metric, with the interval of evaluations in between."""
    recipe, metric, run = learner.recipe, learner.metric, learner.metric.definition()
    if metric == TOP1:  # as the paper words it
        run = f"median {metric.label} of the last {metric.last_epochs} epochs"
    last = range(max(0, recipe.epochs - metric.last_epochs), recipe.epochs)
    if not all(map(recipe.evaluates_after, last)):
        run += f", evaluated every {recipe.evaluation.epochs}"
    return Observation("metric", run, run)
