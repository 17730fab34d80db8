"""Published convergence points: the epochs to one target that others took, by their minibatch."""

import math
from dataclasses import dataclass
from functools import cached_property

from lsgd.errors import Refused
from lsgd.rules.convergence import ConvergencePoint, EvaluationGrid, Reference, prune

JUDGED = ("git", "paper")
"""Labels of numbers that were read where they belong to."""
SHOWN = ("issue", "second-hand")
"""Labels of numbers that nothing is judged by."""


@dataclass(frozen=True)
class PublishedPoint:
    """The epochs that runs with one minibatch took, and how they were trained."""

    batch_size: int
    epochs: list[float]
    """One number for each run."""
    label: str
    """How the numbers are known: one of JUDGED or SHOWN."""
    by: str
    optimizer: str
    lr: float
    """The lr at the end of the warmup."""
    warmup_epochs: int
    momentum: float
    weight_decay: float
    bn_span: int | None = None
    """The images over which batch norm took its statistics; None where it is not known."""
    source: str = ""
    """The source, where it is not that of the other points."""


@dataclass(frozen=True)
class PublishedPoints:
    """Points of the same network, dataset and target."""

    name: str
    title: str
    source: str
    data: str
    """The dataset, by its name in conf/data/."""
    model: str
    """The network, by its name in conf/model/."""
    rate: str
    """The rate that has to reach the target: a name in lsgd.rules.metric.METRICS."""
    target: float
    """The target, reached at this rate or below."""
    points: list[PublishedPoint]
    every: int = 1
    """Epochs from one evaluation to the next."""
    offset: int = 0
    """The first evaluated epoch; 0 if that is `every`."""

    @property
    def grid(self) -> EvaluationGrid:
        """The epochs at which the runs were evaluated."""
        return EvaluationGrid(self.every, self.offset)

    @cached_property
    def pruned(self) -> list[Reference]:
        """What runs are judged by: the points with a label in JUDGED, pruned as MLPerf does."""
        return prune(self.judged)

    @property
    def judged(self) -> list[ConvergencePoint]:
        """The points with a label in JUDGED."""
        return [
            ConvergencePoint(point.batch_size, tuple(point.epochs), self.grid)
            for point in self.points
            if point.label in JUDGED
        ]


def check_points(points: PublishedPoints) -> None:
    """Raise Refused for points that make no sense, or that are not known well enough."""
    for point in points.points:
        where = f"points {points.name}, minibatch {point.batch_size}:"
        if point.label not in JUDGED + SHOWN:
            known = ", ".join(JUDGED + SHOWN)
            raise Refused(f"{where} label={point.label} is unknown; write one of {known}")
        if point.batch_size < 1 or not all(0 < each < math.inf for each in point.epochs):
            raise Refused(f"{where} minibatch and epochs are numbers above 0; write such")
        if point.label in JUDGED and len(point.epochs) < 3:
            raise Refused(
                f"{where} {len(point.epochs)} of the 3 runs that a judgement needs at least; write "
                f"the epochs of all runs, or a label of {' or '.join(SHOWN)}"
            )
    sizes = [point.batch_size for point in points.judged]
    if not sizes or len(set(sizes)) < len(sizes):
        raise Refused(
            f"points {points.name}: no minibatch to judge by, or one of them twice; write each once"
        )
