"""Means, standard deviations, and the difference of two means with its confidence interval.

Two recipes are compared by Welch's t: their runs are independent and few, and an unstable recipe
has another variance than a stable one.
"""

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class SampleStats:
    """The statistics of a metric over n runs: number, mean and standard deviation."""

    n: int
    mean: float
    std: float
    """The sample standard deviation, with denominator n - 1; NaN for a single run."""


def sample_stats(values: list[float]) -> SampleStats:
    """Return number, mean and standard deviation of at least one value.

    >>> sample_stats([8.0, 9.0, 10.0])
    SampleStats(n=3, mean=9.0, std=1.0)
    """
    std = statistics.stdev(values) if len(values) > 1 else math.nan
    return SampleStats(len(values), statistics.fmean(values), std)


@dataclass(frozen=True)
class Difference:
    """A difference of two means with its confidence interval, by default of 95 %."""

    mean: float
    low: float
    """The lower end of the interval, which may be minus infinity."""
    high: float
    """The upper end of the interval, which may be infinity."""


def welch_difference(a: SampleStats, b: SampleStats, level: float = 0.95) -> Difference:
    """Return mean(a) - mean(b) with its confidence interval at a level, by Welch's t-test.

    The interval is infinite if a sample has a single run, or if neither sample has any spread from
    which the interval's width could be estimated.
    """
    mean = a.mean - b.mean
    if a.n < 2 or b.n < 2:
        return Difference(mean, -math.inf, math.inf)
    of_a, of_b = a.std**2 / a.n, b.std**2 / b.n
    variance = of_a + of_b
    if not variance:
        return Difference(mean, -math.inf, math.inf)
    # Imported here, since the import takes a second that other commands need not wait for.
    from scipy.stats import t

    # Shares avoid the underflow of squared tiny variances.
    share_a, share_b = of_a / variance, of_b / variance
    degrees = 1 / (share_a**2 / (a.n - 1) + share_b**2 / (b.n - 1))
    half = float(t.ppf((1 + level) / 2, degrees)) * math.sqrt(variance)
    return Difference(mean, mean - half, mean + half)
