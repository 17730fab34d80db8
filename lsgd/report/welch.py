"""Means, standard deviations, and the difference of two means with its confidence interval.

Two recipes are compared by Welch's t: their runs are independent and few, and an unstable recipe
has another variance than a stable one.
"""

import math
import statistics
from dataclasses import dataclass, field

from lsgd.rules.metric import TOP1, Metric


@dataclass(frozen=True)
class SampleStats:
    """The statistics of a metric over n runs: number, mean and standard deviation."""

    n: int
    mean: float
    std: float
    """The sample standard deviation, with denominator n - 1; NaN for a single run."""
    decimals: int = field(default=2, repr=False)
    """The number of decimals with which mean and standard deviation are shown."""


def sample_stats(values: list[float], metric: Metric = TOP1) -> SampleStats:
    """Return the number, mean and standard deviation of a metric's values, such as one per seed.

    >>> sample_stats([8.0, 9.0, 10.0])
    SampleStats(n=3, mean=9.0, std=1.0)
    """
    scale = _power_of_2(*values)
    scaled = [value / scale for value in values]
    std = scale * statistics.stdev(scaled) if len(values) > 1 else math.nan
    mean = scale * statistics.fmean(scaled)
    return SampleStats(len(values), mean, std, metric.decimals(mean))


def _power_of_2(*values: float) -> float:
    """Return the largest power of 2 that is not above the largest absolute value.

    It is exact, and sums and squares of the quotients do not overflow or underflow.

    >>> _power_of_2(-24.0, 1.0), _power_of_2(1e200) < 1e200
    (16.0, True)
    """
    return math.ldexp(1.0, math.frexp(max(map(abs, values)))[1] - 1)


@dataclass(frozen=True)
class Difference:
    """A difference of two means with its confidence interval, by default of 95 %."""

    mean: float
    low: float
    """The lower end of the interval, which may be minus infinity."""
    high: float
    """The upper end of the interval, which may be infinity."""
    decimals: int = field(default=2, repr=False)
    """The number of decimals with which the two means are shown."""


def welch_difference(a: SampleStats, b: SampleStats, level: float = 0.95) -> Difference:
    """Return mean(a) - mean(b) with its confidence interval at a level, by Welch's t-test.

    The interval is infinite if a sample has a single run, or if neither sample has any spread from
    which the interval's width could be estimated.
    """
    mean, decimals = a.mean - b.mean, max(a.decimals, b.decimals)
    if a.n < 2 or b.n < 2 or not (a.std or b.std):
        return Difference(mean, -math.inf, math.inf, decimals)
    # Imported here, since the import takes a second that other commands need not wait for.
    from scipy.stats import t

    scale = _power_of_2(a.std, b.std)
    of_a, of_b = (a.std / scale) ** 2 / a.n, (b.std / scale) ** 2 / b.n
    variance = of_a + of_b
    share_a, share_b = of_a / variance, of_b / variance
    degrees = 1 / (share_a**2 / (a.n - 1) + share_b**2 / (b.n - 1))
    half = float(t.ppf((1 + level) / 2, degrees)) * math.sqrt(variance) * scale
    return Difference(mean, mean - half, mean + half, decimals)
