"""MLPerf Training's rule for submissions that converge faster than its reference.

A reference convergence point is a minibatch and the epochs that several runs of the reference take
to a target with it. A submission of five runs may be faster only by as much as chance explains;
else it is taken not to train the same network in the same way. Source: the checker of these points
in github.com/mlcommons/logging, as of training 4.0.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lsgd.rules.aggregate import DROPPED, olympic_mean

SUBMITTED = 5
"""The runs of a submission, for ResNet."""
OWN_REFERENCE = 2 * SUBMITTED
"""The runs of a reference point; what lies between two points counts as one of so many."""
P_VALUE = 0.05
"""Of the one-sided test that a submission is not faster than its reference."""


@dataclass(frozen=True)
class EvaluationGrid:
    """The epochs at which a run is evaluated, of which its epochs to a target are one."""

    every: int = 1
    offset: int = 0
    """The first evaluated epoch; 0 if that is `every`."""

    @property
    def latest(self) -> int:
        """The most epochs by which an evaluation finds a target late, over one at every epoch."""
        return self.every - 1

    def __str__(self) -> str:
        if self.every == 1:
            return "every epoch"
        return f"every {self.every} epochs from epoch {self.offset or self.every} on"


@dataclass(frozen=True)
class ConvergencePoint:
    """The epochs that runs with one minibatch take to the target."""

    batch_size: int
    epochs: tuple[float, ...]
    """One number for each run; infinite for a run that never reaches the target."""
    grid: EvaluationGrid = EvaluationGrid()

    @property
    def reference(self) -> "Reference":
        """What the point asks of a submission."""
        return Reference(
            self.batch_size,
            olympic_mean(self.epochs),
            statistics.pstdev(self.epochs),
            len(self.epochs) - 2 * DROPPED,
        )


@dataclass(frozen=True)
class Reference:
    """What a submission with one minibatch is held against: a point, or what is between two."""

    batch_size: int
    mean: float
    """The olympic mean of the epochs."""
    std: float
    """The standard deviation over all runs, best and worst too, with n below the sum."""
    n: int
    """The runs that the test counts."""
    between: tuple[int, int] | None = None
    """The two minibatches that it is interpolated between; None for a point."""

    @property
    def minimum(self) -> float:
        """The smallest olympic mean of a submission that passes.

        The smallest that Student's t, one-sided and with equal variances, does not tell from this
        mean at the level of P_VALUE, both samples having the standard deviation of this one. In
        closed form, where MLPerf bisects to 1e-4.
        """
        if not self.std:
            return self.mean
        # Imported here, since it takes a second, which only a judgement has to wait.
        from scipy.stats import t

        counted = SUBMITTED - 2 * DROPPED
        width = self.std * math.sqrt(1 / self.n + 1 / counted)
        return self.mean - float(t.ppf(1 - P_VALUE, self.n + counted - 2)) * width


def prune(points: Sequence[ConvergencePoint]) -> list[Reference]:
    """The points that count, by minibatch: those that no other shows to be slower than need be.

    Minibatches below that of the fastest point go first. Then each point goes that is slower than
    the straight line between its neighbours, in one pass from small to large in which a point that
    goes makes its successor the next to be looked at. That is not the lower convex envelope: points
    before it are not looked at again.
    """
    left = sorted((point.reference for point in points), key=lambda each: each.batch_size)
    fastest = min(left, key=lambda each: each.mean)
    left = left[left.index(fastest) :]
    i = 1
    while i < len(left) - 1:
        if left[i].mean > _between(left[i - 1], left[i + 1], left[i].batch_size).mean:
            del left[i]
        else:
            i += 1
    return left


def reference_at(pruned: Sequence[Reference], batch_size: int) -> Reference | None:
    """The point of this minibatch, or what is between its neighbours; None outside of all points.

    `pruned` are in order of their minibatches. Mean and standard deviation are interpolated in a
    straight line.
    """
    for each in pruned:
        if each.batch_size == batch_size:
            return each
    for low, high in pairwise(pruned):
        if low.batch_size < batch_size < high.batch_size:
            return _between(low, high, batch_size)
    return None


def _between(low: Reference, high: Reference, batch_size: int) -> Reference:
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return Reference(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.std + share * (high.std - low.std),
        OWN_REFERENCE,
        between=(low.batch_size, high.batch_size),
    )


PASSES, SCALED, FAILS = "passes", "passes, scaled", "fails"
OWN_POINT, NOT_JUDGED = "own point needed", "not judged"


@dataclass(frozen=True)
class Judgement:
    """What the rule says of the runs of one minibatch."""

    word: str
    """One of PASSES, SCALED, FAILS, OWN_POINT and NOT_JUDGED."""
    why: str
    mean: float | None = None
    """The olympic mean of the runs."""
    reference: Reference | None = None
    """What they are held against."""
    factor: float = 1.0
    """Their time counts multiplied by it: as long as the epochs of the reference would take."""


def judge_convergence(
    pruned: Sequence[Reference], batch_size: int, epochs: Sequence[float]
) -> Judgement:
    """Judge runs by their epochs to the target, infinite for one that never reached it."""
    if len(epochs) != SUBMITTED:
        runs = f"{len(epochs)} run{'' if len(epochs) == 1 else 's'}"
        return Judgement(NOT_JUDGED, f"{runs}, and a submission has {SUBMITTED}")
    failed = sum(map(math.isinf, epochs))
    if failed > DROPPED:
        return Judgement(FAILS, f"{failed} runs do not reach the target, and 1 may")
    mean = olympic_mean(epochs)
    # A smaller minibatch takes no more epochs, so that it is held against the smallest point.
    smaller = batch_size < pruned[0].batch_size
    reference = pruned[0] if smaller else reference_at(pruned, batch_size)
    if reference is None:
        runs = f"{OWN_REFERENCE} runs of the reference"
        return Judgement(OWN_POINT, f"no point is as large, and MLPerf asks for {runs}", mean)
    if mean >= reference.mean:
        return Judgement(PASSES, "no faster than the reference", mean, reference)
    if mean >= reference.minimum:
        factor = reference.mean / mean
        return Judgement(SCALED, "faster by no more than chance explains", mean, reference, factor)
    too_fast = "faster by more than chance explains"
    if smaller:
        return Judgement(OWN_POINT, f"{too_fast}, and no point is as small", mean, reference)
    return Judgement(FAILS, too_fast, mean, reference)
