"""Published convergence points: the epochs to one target by minibatch size."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from lsgd.errors import UsageError
from lsgd.rules.convergence import (
    ConvergencePoint,
    EvaluationEpochs,
    ReferenceStatistics,
    prune_points,
)

JUDGED_LABELS = ("git", "paper")
"""Labels of numbers that were read from a first-hand source, by which runs are judged."""
DISPLAYED_LABELS = ("issue", "second-hand")
"""Labels of numbers that are displayed but never used to judge a run."""


@dataclass(frozen=True)
class PublishedPoint:
    """The epochs that published runs of one minibatch size took to a target, and their settings."""

    batch_size: int
    epochs: list[float]
    """The epochs to the target, one number for each run."""
    label: str
    """The kind of source of the numbers, in JUDGED_LABELS or DISPLAYED_LABELS."""
    by: str
    optimizer: str
    lr: float
    """The lr at the end of the warmup."""
    warmup_epochs: int
    momentum: float
    weight_decay: float
    bn_span: int | None = None
    """The number of images per BN statistic; None if unknown."""
    source: str = ""
    """The source of this point, if it differs from that of the other points."""
    recipe: str = ""
    """The recipe with the settings of this point, if several points have its minibatch size."""


@dataclass(frozen=True)
class PublishedPoints:
    """Published epochs to a target by minibatch size, for one network and dataset."""

    name: str
    title: str
    source: str
    data: str
    """The dataset, by its name in conf/data/."""
    model: str
    """The network, by its name in conf/model/."""
    rate: str
    """The metric with the target: a name in lsgd.rules.metric.METRICS."""
    target: float
    """The target, which is reached at this value or below."""
    points: list[PublishedPoint]
    every: int = 1
    """The number of epochs between evaluations."""
    offset: int = 0
    """The first evaluated epoch; 0 for `every`."""
    paper: str = ""
    """The `paper` of the recipes that these points are for; empty for recipes of any paper."""

    def for_recipe(self, name: str) -> "PublishedPoints":
        """Return these points with one per minibatch size: that of a recipe, or else the first."""
        by_size: dict[int, PublishedPoint] = {}
        for point in self.points:
            if point.batch_size not in by_size or point.recipe == name:
                by_size[point.batch_size] = point
        return replace(self, points=list(by_size.values()))

    @property
    def grid(self) -> EvaluationEpochs:
        """The epochs after which the published runs were evaluated."""
        return EvaluationEpochs(self.every, self.offset)

    @cached_property
    def pruned(self) -> list[ReferenceStatistics]:
        """The first-hand convergence points after MLPerf's pruning, to compare runs with."""
        return prune_points(self.judged)

    @property
    def judged(self) -> list[ConvergencePoint]:
        """The convergence points from first-hand sources, by which runs are judged."""
        return [
            ConvergencePoint(point.batch_size, tuple(point.epochs))
            for point in self.points
            if point.label in JUDGED_LABELS
        ]


def check_points(points: PublishedPoints) -> None:
    """Raise UsageError if published convergence points are invalid, duplicated or of few runs."""
    for point in points.points:
        where = f"points {points.name}, minibatch {point.batch_size}:"
        if point.label not in JUDGED_LABELS + DISPLAYED_LABELS:
            known = ", ".join(JUDGED_LABELS + DISPLAYED_LABELS)
            raise UsageError(f"{where} label={point.label} is unknown; write one of {known}")
        if point.batch_size < 1 or not all(0 < each < math.inf for each in point.epochs):
            raise UsageError(f"{where} minibatch and epochs are numbers above 0; write such")
        if point.label in JUDGED_LABELS and len(point.epochs) < 3:
            raise UsageError(
                f"{where} {len(point.epochs)} of the 3 runs that a judgement needs at least; write "
                f"the epochs of all runs, or a label of {' or '.join(DISPLAYED_LABELS)}"
            )
    sizes = [(p.batch_size, p.recipe) for p in points.points if p.label in JUDGED_LABELS]
    if not sizes or len(set(sizes)) < len(sizes):
        raise UsageError(
            f"points {points.name}: no minibatch to judge by, or one of them twice; write each once"
        )


def points_of_paper(points: Iterable[PublishedPoints], paper: str) -> list[PublishedPoints]:
    """Return the points for recipes of a paper: first its own, then those for any recipe."""
    own = [each for each in points if each.paper in (paper, "")]
    return sorted(own, key=lambda each: each.paper != paper)
