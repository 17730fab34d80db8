"""The rule of MLPerf Training for submissions that converge faster than its reference.

A reference convergence point is a minibatch size and the epochs that several runs of the reference
need to reach a target with it. A submission of five runs may be faster only by as much as chance
explains; otherwise it is taken to train something else. Source: the checker of these points in
github.com/mlcommons/logging, as of training 4.0. That checker judges whole folders of MLPerf logs
and not numbers, so the rule is implemented here.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SUBMISSION_RUNS = 5
"""The number of runs of a submission, for ResNet."""
REFERENCE_RUNS = 2 * SUBMISSION_RUNS
"""The number of runs of a reference point; an interpolated point counts as one of as many runs."""
P_VALUE = 0.05
"""The significance level of the one-sided test that a submission is faster than its reference."""
TRIMMED_RUNS = 1
"""The number of best and of worst runs that an olympic mean leaves out."""


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """Return mean and sample standard deviation (divisor n - 1) of runs' values; NaN for one run.

    >>> mean_and_deviation([34, 35, 36]), mean_and_deviation([34, 35, math.inf])
    ((35.0, 1.0), (inf, nan))
    """
    mean = statistics.fmean(numbers)
    if len(numbers) < 2 or math.isinf(mean):
        return mean, math.nan
    return mean, statistics.stdev(numbers)


def olympic_mean(numbers: Sequence[float]) -> float:
    """Return the mean of runs' values without best and worst; infinite if two or more are infinite.

    Raises ValueError for fewer than three values.

    >>> olympic_mean([34, 35, 36, 36, math.inf])
    35.666666666666664
    """
    if len(numbers) <= 2 * TRIMMED_RUNS:
        raise ValueError(f"an olympic mean needs 3 numbers or more, not {len(numbers)}")
    return statistics.fmean(sorted(numbers)[TRIMMED_RUNS:-TRIMMED_RUNS])


@dataclass(frozen=True)
class EvaluationEpochs:
    """The epochs at which a run is evaluated, and at which it can reach its target."""

    every: int = 1
    offset: int = 0
    """The first evaluated epoch; 0 if that is `every`."""

    @property
    def max_delay(self) -> int:
        """The maximum delay in epochs until an evaluation finds that a target was reached."""
        return self.every - 1

    def __str__(self) -> str:
        if self.every == 1:
            return "every epoch"
        return f"every {self.every} epochs from epoch {self.offset or self.every} on"


@dataclass(frozen=True)
class ConvergencePoint:
    """An MLPerf convergence point: the epochs of runs with one minibatch size to the target."""

    batch_size: int
    epochs: tuple[float, ...]
    """The epochs of each run; infinite for a run that never reaches the target."""

    @property
    def reference(self) -> "ReferenceStatistics":
        """The statistics of this convergence point, to which submissions are compared."""
        return ReferenceStatistics(
            self.batch_size,
            olympic_mean(self.epochs),
            statistics.pstdev(self.epochs),
            len(self.epochs) - 2 * TRIMMED_RUNS,
        )


@dataclass(frozen=True)
class ReferenceStatistics:
    """The statistics of reference runs to which submissions of one minibatch size are compared."""

    batch_size: int
    mean: float
    """The olympic mean of the epochs."""
    std: float
    """The population standard deviation (divisor n) of all runs, including best and worst."""
    n: int
    """The number of runs that the test counts."""
    between: tuple[int, int] | None = None
    """The minibatch sizes between which the statistics are interpolated; None for a point."""

    @property
    def minimum(self) -> float:
        """The smallest olympic mean of epochs with which a submission passes.

        It is the smallest that a one-sided Student's t-test with equal variances does not separate
        from this mean at the level P_VALUE, where both samples have this standard deviation. It is
        computed in closed form; MLPerf bisects to 1e-4.
        """
        if not self.std:
            return self.mean
        # Imported here, since the import takes a second and few callers need it.
        from scipy.stats import t

        counted = SUBMISSION_RUNS - 2 * TRIMMED_RUNS
        width = self.std * math.sqrt(1 / self.n + 1 / counted)
        return self.mean - float(t.ppf(1 - P_VALUE, self.n + counted - 2)) * width


def prune_points(points: Sequence[ConvergencePoint]) -> list[ReferenceStatistics]:
    """Remove convergence points slower than others imply; return the rest by minibatch size.

    First the minibatch sizes below that of the fastest point are removed. Then, in one pass from
    small to large, each point above the straight line between its neighbours is removed, and its
    successor is looked at next. The result is not the lower convex envelope, since points before a
    removed one are not looked at again.
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


def reference_at(
    pruned: Sequence[ReferenceStatistics], batch_size: int
) -> ReferenceStatistics | None:
    """Return the reference statistics for a minibatch size, interpolated between two points.

    `pruned` is sorted by minibatch size. Returns None outside its range.
    """
    for each in pruned:
        if each.batch_size == batch_size:
            return each
    for low, high in pairwise(pruned):
        if low.batch_size < batch_size < high.batch_size:
            return _between(low, high, batch_size)
    return None


def _between(
    low: ReferenceStatistics, high: ReferenceStatistics, batch_size: int
) -> ReferenceStatistics:
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return ReferenceStatistics(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.std + share * (high.std - low.std),
        REFERENCE_RUNS,
        between=(low.batch_size, high.batch_size),
    )


PASSES, SCALED, FAILS = "passes", "passes, scaled", "fails"
OWN_POINT, NOT_JUDGED = "own point needed", "not judged"


@dataclass(frozen=True)
class Judgement:
    """The verdict of MLPerf's convergence rule on a submission's runs with one minibatch size."""

    verdict: str
    """The verdict: PASSES, SCALED, FAILS, OWN_POINT or NOT_JUDGED."""
    reason: str
    mean: float | None = None
    """The olympic mean of the runs."""
    reference: ReferenceStatistics | None = None
    """The reference to which the runs are compared."""
    factor: float = 1.0
    """The factor by which the runs' time is multiplied to be that of the reference's epochs."""


def judge_convergence(
    pruned: Sequence[ReferenceStatistics], batch_size: int, epochs: Sequence[float]
) -> Judgement:
    """Judge a submission by MLPerf's rule from its runs' epochs to target, infinite if missed."""
    if len(epochs) != SUBMISSION_RUNS:
        runs = f"{len(epochs)} run{'' if len(epochs) == 1 else 's'}"
        return Judgement(NOT_JUDGED, f"{runs}, and a submission has {SUBMISSION_RUNS}")
    failed = sum(map(math.isinf, epochs))
    if failed > TRIMMED_RUNS:
        return Judgement(FAILS, f"{failed} runs do not reach the target, and 1 may")
    mean = olympic_mean(epochs)
    # A smaller minibatch needs no more epochs, so it is compared with the smallest point.
    smaller = batch_size < pruned[0].batch_size
    reference = pruned[0] if smaller else reference_at(pruned, batch_size)
    if reference is None:
        runs = f"{REFERENCE_RUNS} runs of the reference"
        return Judgement(OWN_POINT, f"no point is that large, and MLPerf asks for {runs}", mean)
    if mean >= reference.mean:
        return Judgement(PASSES, "no faster than the reference", mean, reference)
    if mean >= reference.minimum:
        factor = reference.mean / mean
        return Judgement(SCALED, "faster within the noise", mean, reference, factor)
    too_fast = "faster beyond the noise"
    if smaller:
        return Judgement(OWN_POINT, f"{too_fast}, and no point is that small", mean, reference)
    return Judgement(FAILS, too_fast, mean, reference)
