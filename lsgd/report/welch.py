"""Means, standard deviations, and the difference of two means with its 95 % interval.

Two recipes are compared by Welch's t: their runs are independent and few, and the spread of an
unstable recipe is not that of a stable one.
"""

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """What is known of a recipe's error: n runs, their mean and sample standard deviation."""

    n: int
    mean: float
    std: float
    """The sample standard deviation, with n - 1 below the sum; nan for a single run."""


def sample(values: list[float]) -> Sample:
    """The sample of at least one value.

    >>> sample([8.0, 9.0, 10.0])
    Sample(n=3, mean=9.0, std=1.0)
    """
    std = statistics.stdev(values) if len(values) > 1 else math.nan
    return Sample(len(values), statistics.fmean(values), std)


@dataclass(frozen=True)
class Difference:
    """A difference of means and the interval that holds the true one in 95 % of such cases."""

    mean: float
    low: float
    """The lower end of the interval; minus infinity where it has no ends."""
    high: float
    """The upper end of the interval; infinity where it has no ends."""


def difference(a: Sample, b: Sample) -> Difference:
    """The mean of a less that of b, by Welch's t.

    The interval is infinite if one of them is of a single run, or if neither has any spread from
    which its width could be estimated.
    """
    mean = a.mean - b.mean
    if a.n < 2 or b.n < 2:
        return Difference(mean, -math.inf, math.inf)
    of_a, of_b = a.std**2 / a.n, b.std**2 / b.n
    variance = of_a + of_b
    if not variance:
        return Difference(mean, -math.inf, math.inf)
    # Imported here, since it takes a second, which only a comparison of means has to wait.
    from scipy.stats import t

    # Shares first: squares of tiny variances would vanish.
    share_a, share_b = of_a / variance, of_b / variance
    degrees = 1 / (share_a**2 / (a.n - 1) + share_b**2 / (b.n - 1))
    half = float(t.ppf(0.975, degrees)) * math.sqrt(variance)
    return Difference(mean, mean - half, mean + half)
