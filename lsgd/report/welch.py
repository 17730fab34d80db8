"""Means, standard deviations, and the difference of two means with its 95 % interval.

Two recipes are compared by Welch's t: their runs are independent and few, and the spread of an
unstable recipe is not that of a stable one.
"""

import math
import statistics
from dataclasses import dataclass

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)


@dataclass(frozen=True)
class Sample:
    """What is known of a recipe's error: n runs, their mean and sample standard deviation."""

    n: int
    mean: float
    std: float
    """With n - 1 below the sum; nan for a single run."""


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
    high: float


def difference(a: Sample, b: Sample) -> Difference:
    """a's mean less b's; the interval has no ends where one of them is of a single run, nor where
    neither has any spread to tell it from."""
    mean = a.mean - b.mean
    if a.n < 2 or b.n < 2:
        return Difference(mean, -math.inf, math.inf)
    of_a, of_b = a.std**2 / a.n, b.std**2 / b.n
    variance = of_a + of_b
    if not variance:
        return Difference(mean, -math.inf, math.inf)
    # Shares first: squares of tiny variances would vanish.
    share_a, share_b = of_a / variance, of_b / variance
    degrees = 1 / (share_a**2 / (a.n - 1) + share_b**2 / (b.n - 1))
    half = t_quantile(degrees) * math.sqrt(variance)
    return Difference(mean, mean - half, mean + half)


def t_quantile(degrees: float) -> float:
    """What |t| exceeds in 5 % of cases, at so many degrees of freedom (1 or more, not whole).

    >>> round(t_quantile(4), 3)  # of any table
    2.776
    """
    # With t = sqrt(degrees) tan(x) the density is cos(x)^(degrees - 1), up to a constant.
    whole = math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2))
    wanted = 0.95 * whole * math.sqrt(math.pi) / 2
    low, high = 0.0, math.atan(13 / math.sqrt(degrees))  # at 1 degree, the widest, it is 12.7
    for _ in range(60):
        middle = (low + high) / 2
        x = middle / 2 * (_NODES + 1)
        if middle / 2 * float(_WEIGHTS @ np.cos(x) ** (degrees - 1)) < wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)
