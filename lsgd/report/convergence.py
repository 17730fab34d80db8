"""The epochs to a target, judged by MLPerf's rules alone, beside the report's own intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lsgd import config, definitions
from lsgd.recipe import Recipe
from lsgd.recipe.published_points import PublishedPoints, points_of_paper
from lsgd.report.blocks import Block, BulletList, Table
from lsgd.report.findings import Findings
from lsgd.report.formatting import NONE
from lsgd.rules.convergence import (
    REFERENCE_RUNS,
    SCALED,
    SUBMISSION_RUNS,
    TRIMMED_RUNS,
    EvaluationEpochs,
    Judgement,
    judge_convergence,
    mean_and_deviation,
    olympic_mean,
)
from lsgd.rules.metric import METRICS, TimeToTarget

NEVER = "∞"
"""The epochs of a run that never reaches the target."""


@dataclass(frozen=True)
class ConvergedRuns:
    """The runs of one recipe, each with the epochs that it needed to reach a target."""

    label: str
    batch_size: int
    epochs: Sequence[float]
    """One number for each run; infinite for a run that diverged or ended before the target."""
    grid: EvaluationEpochs


def points_for(recipe: Recipe, rate: str, target: float) -> PublishedPoints | None:
    """Return the convergence points published for a recipe and target, or None."""
    wanted = (recipe.data.name, recipe.model.name, rate, target)
    for points in points_of_paper(definitions.load_all_points(), recipe.paper):
        if (points.data, points.model, points.rate, points.target) == wanted:
            full_size = config.load_data(points.data).image_size
            is_full_size = recipe.data.image_size == full_size and not recipe.image_sizes.points
            return points.for_recipe(recipe.name) if is_full_size else None
    return None


def judge_as_mlperf(findings: Findings) -> list[Block]:
    """Return MLPerf's verdicts on the epochs to a target, if that is the metric of the runs."""
    metric = findings.metric
    if not isinstance(metric, TimeToTarget) or metric.time_unit != "epochs":
        return []
    by_points: list[tuple[PublishedPoints | None, list[ConvergedRuns]]] = []
    for group in findings.groups:
        if not group.runs:
            continue
        points = points_for(group.recipe, metric.name, metric.target)
        same = next((runs for known, runs in by_points if known == points), None)
        if same is None:
            by_points.append((points, same := []))
        same.append(
            ConvergedRuns(
                group.label,
                group.recipe.batch_size,
                [run.final_metric if run.finished else math.inf for run in group.runs],
                EvaluationEpochs(group.recipe.evaluation.epochs, group.recipe.evaluation.offset),
            )
        )
    return [block for points, runs in by_points for block in judged_blocks(runs, points)]


def judged_blocks(recipes: Sequence[ConvergedRuns], points: PublishedPoints | None) -> list[Block]:
    """Return a table of recipes' epochs to a target, with MLPerf's verdicts if it has points."""
    if not recipes:
        return []
    head = ["recipe", "kn", "epochs of each run", "mean", "median", "olympic mean"]
    if points is None:
        none = (
            "Not judged: no convergence points are published for this target with the network, "
            "dataset and image size of these recipes."
        )
        return [Table(head, [_epochs(each) for each in recipes]), none]
    found = [judge_convergence(points.pruned, each.batch_size, each.epochs) for each in recipes]
    pairs = list(zip(recipes, found, strict=True))
    rows = [_epochs(each) + _verdict(judgement) for each, judgement in pairs]
    reasons = [f"{each.label}: {judgement.reason}" for each, judgement in pairs]
    return [
        Table([*head, "reference", "at least", "verdict"], rows),
        BulletList(reasons),
        "The decisions by MLPerf's rules, which give no confidence of a difference:",
        BulletList([*_rules(points), *_late(recipes, points)]),
    ]


def _epochs(runs: ConvergedRuns) -> list[str]:
    """Return the table cells with the epochs to the target of one recipe's runs."""
    epochs = runs.epochs
    mean, std = mean_and_deviation(epochs) if epochs else (math.nan, math.nan)
    return [
        runs.label,
        str(runs.batch_size),
        " ".join(f"{each:g}".replace("inf", NEVER) for each in epochs) or NONE,
        _number(mean) + ("" if math.isnan(std) else f" ± {std:.2f}"),
        _number(median(epochs)) if epochs else NONE,
        _number(olympic_mean(epochs)) if len(epochs) > 2 * TRIMMED_RUNS else NONE,
    ]


def _verdict(judgement: Judgement) -> list[str]:
    """Return the table cells with MLPerf's verdict on the epochs of one recipe."""
    reference, word = judgement.reference, judgement.verdict
    bar = [_number(reference.mean), _number(reference.minimum)] if reference else [NONE, NONE]
    return [*bar, f"passes, time x {judgement.factor:.4f}" if word == SCALED else word]


def _number(value: float) -> str:
    return NONE if math.isnan(value) else NEVER if math.isinf(value) else f"{value:.2f}"


def _rules(points: PublishedPoints) -> list[str]:
    """Return sentences that explain how MLPerf judges the epochs to a target."""
    metric = METRICS[points.rate]
    sizes = ", ".join(str(reference.batch_size) for reference in points.pruned)
    target = metric.format_labelled(points.target)
    return [
        f"Reference: {points.title}, epochs to a {target} or less ({points.source}); of "
        f"{len(points.judged)} points those count that no other shows to be slow: {sizes}. "
        "Between two of them mean and standard deviation lie on a straight line.",
        f"A submission has {SUBMISSION_RUNS} runs. What is compared is the olympic mean, without "
        f"the best and the worst run. {NEVER} is a run that never reached the target; one may.",
        "At least: the smallest olympic mean that a one-sided t test (p = 0.05, equal variances) "
        "does not tell from the reference. A submission that is faster than the reference, but "
        "not than that, passes with a time multiplied by reference / own mean. A slower one "
        "passes as it is.",
        "A minibatch below all points has to pass the smallest point; for a larger one MLPerf "
        f"asks for {REFERENCE_RUNS} runs of the reference.",
        "Mean and ± here are over all runs (n − 1 below the sum).",
    ]


def _late(recipes: Sequence[ConvergedRuns], points: PublishedPoints) -> list[str]:
    """Return a warning for each recipe that is evaluated less often than MLPerf's reference.

    Its epochs seem higher than they are, which makes it pass more easily.
    """
    return [
        f"{each.label} is evaluated {each.grid}: its epochs are up to {each.grid.max_delay} late, "
        f"and it passes the more easily for that; the reference was evaluated {points.grid}."
        for each in recipes
        if each.grid.every > points.grid.every
    ]
