"""Epochs to a target, judged as MLPerf does: beside our own intervals, and by its rules alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lsgd import config
from lsgd.recipe import Recipe
from lsgd.recipe.points import PublishedPoints
from lsgd.report.blocks import Block, Listing, Table
from lsgd.report.wording import NONE
from lsgd.rules.aggregate import DROPPED, mean_and_deviation, median, olympic_mean
from lsgd.rules.convergence import (
    OWN_REFERENCE,
    SCALED,
    SUBMITTED,
    EvaluationGrid,
    Judgement,
    judge_convergence,
)
from lsgd.rules.metric import METRICS

NEVER = "∞"
"""The epochs of a run that never reaches the target."""


@dataclass(frozen=True)
class ConvergedRuns:
    """The runs of one recipe, whose number is the epochs to a target."""

    label: str
    batch_size: int
    epochs: Sequence[float]
    """One number for each run; infinite for one that ended before the target, or diverged."""
    grid: EvaluationGrid


def points_for(recipe: Recipe, rate: str, target: float) -> PublishedPoints | None:
    """The published points of this network and dataset to this target, if there are some."""
    wanted = (recipe.data.name, recipe.model.name, rate, target)
    for points in config.all_points():
        if (points.data, points.model, points.rate, points.target) == wanted:
            return points
    return None


def judged_blocks(recipes: Sequence[ConvergedRuns], points: PublishedPoints | None) -> list[Block]:
    """The epochs of all recipes in a table, and what MLPerf's rule says of them.

    Without points, what does not need any.
    """
    if not recipes:
        return []
    head = ["recipe", "kn", "epochs of each run", "mean", "median", "olympic mean"]
    if points is None:
        none = "Nothing is judged: no convergence points to this target are published."
        return [Table(head, [_epochs(each) for each in recipes]), none]
    found = [judge_convergence(points.pruned, each.batch_size, each.epochs) for each in recipes]
    pairs = list(zip(recipes, found, strict=True))
    rows = [_epochs(each) + _verdict(judgement) for each, judgement in pairs]
    reasons = [f"{each.label}: {judgement.why}" for each, judgement in pairs]
    return [
        Table([*head, "reference", "at least", "verdict"], rows),
        Listing(reasons),
        "How MLPerf judges, which says nothing of how sure a difference is:",
        Listing([*_rules(points), *_late(recipes, points)]),
    ]


def _epochs(runs: ConvergedRuns) -> list[str]:
    epochs = runs.epochs
    mean, std = mean_and_deviation(epochs) if epochs else (math.nan, math.nan)
    return [
        runs.label,
        str(runs.batch_size),
        " ".join(f"{each:g}".replace("inf", NEVER) for each in epochs) or NONE,
        _number(mean) + ("" if math.isnan(std) else f" ± {std:.2f}"),
        _number(median(epochs)) if epochs else NONE,
        _number(olympic_mean(epochs)) if len(epochs) > 2 * DROPPED else NONE,
    ]


def _verdict(judgement: Judgement) -> list[str]:
    reference, word = judgement.reference, judgement.word
    bar = [_number(reference.mean), _number(reference.minimum)] if reference else [NONE, NONE]
    return [*bar, f"passes, time x {judgement.factor:.4f}" if word == SCALED else word]


def _number(value: float) -> str:
    return NONE if math.isnan(value) else NEVER if math.isinf(value) else f"{value:.2f}"


def _rules(points: PublishedPoints) -> list[str]:
    metric = METRICS[points.rate]
    sizes = ", ".join(str(reference.batch_size) for reference in points.pruned)
    target = metric.named(points.target)
    return [
        f"Reference: {points.title}, epochs to a {target} or less ({points.source}); of "
        f"{len(points.judged)} points those count that no other shows to be slow: {sizes}. "
        "Between two of them mean and standard deviation lie on a straight line.",
        f"A submission has {SUBMITTED} runs. What is compared is the olympic mean, without the "
        f"best and the worst run. {NEVER} is a run that never reached the target; one may.",
        "At least: the smallest olympic mean that a one-sided t test (p = 0.05, equal variances) "
        "does not tell from the reference. Who is faster than the reference, but not than that, "
        "passes with a time multiplied by reference / own mean. Who is slower passes as it is.",
        "A smaller minibatch than all has to pass the smallest point; for a larger one MLPerf asks "
        f"for {OWN_REFERENCE} runs of the reference.",
        "Mean and ± here are over all runs (n − 1 below the sum).",
    ]


def _late(recipes: Sequence[ConvergedRuns], points: PublishedPoints) -> list[str]:
    """That runs which are evaluated more seldom than the reference seem slower than they are."""
    grids = {each.grid: each.label for each in recipes if each.grid.every > points.grid.every}
    return [
        f"{label} is evaluated {grid}: its epochs are up to {grid.latest} late, and it passes the "
        f"more easily for that; the reference was evaluated {points.grid}."
        for grid, label in grids.items()
    ]
