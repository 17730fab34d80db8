"""The confidence level of intervals that are tested again after every added seed.

Whoever trains more seeds until an interval of 95 % decides is wrong in far more than 5 % of
studies. With Pocock's boundary (Biometrika 64, 1977) every look has the same, higher level, chosen
so that all of them together cover the truth in 95 % of studies. It is derived for normal means of
known variance; the same levels serve Welch's t by the significance level approach of Jennison and
Turnbull, "Group Sequential Methods" (2000), section 4.4.
"""

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

LEAST = 3
"""The number of seeds at the first of several looks; Welch's interval of two is unreliable."""
SHARE = 0.7
"""The part of the allowed error rate that Pocock's boundary is given.

With few runs of unequal variance Welch's t is wrong up to a third more often than its level says
(results/2026-11-25-looks, results/2026-11-26-deciding).
"""


@dataclass(frozen=True)
class Looks:
    """The interim tests of a study's claims: one each with `first`, …, `last` seeds."""

    first: int
    last: int

    def level(self, confidence: float) -> float:
        """Return the level of each test's interval with which all have at least `confidence`.

        >>> Looks(5, 5).level(0.95)
        0.95
        >>> round(Looks(3, 10).level(0.95), 4)
        0.9901
        """
        if self.first >= self.last:
            return confidence
        return pocock_level(self.first, self.last, 1 - SHARE * (1 - confidence))


@cache
def pocock_level(first: int, last: int, confidence: float) -> float:
    """Return the level of the intervals at n = first, …, last that jointly have a confidence.

    It is exact for normal means of known variance (Pocock 1977).
    """
    from scipy.optimize import brentq

    normal = NormalDist()
    # The root lies between the levels of one look and of independent looks (Bonferroni).
    ends = [normal.inv_cdf(1 - (1 - confidence) / 2 / looks) for looks in (1, last - first + 1)]
    critical = brentq(
        lambda c: crossing_probability(c, first, last) - (1 - confidence), *ends, xtol=1e-6
    )
    return 2 * normal.cdf(critical) - 1


def crossing_probability(critical: float, first: int, last: int) -> float:
    """Return the probability that a running mean of normal values ever leaves ±`critical`.

    The mean is over the first n standard normal values, for n = first, …, last, and `critical` is
    in standard deviations of that mean, on either side of 0. By the recursion of Armitage,
    McPherson and Rowe (1969) over the density of the sum so far.
    """
    import numpy as np

    def grid(n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return midpoints within the boundary for the sum of n values, and their widths."""
        end = critical * n**0.5
        edges = np.linspace(-end, end, 251)
        return (edges[1:] + edges[:-1]) / 2, np.diff(edges)

    sums, widths = grid(first)
    density = np.exp(-(sums**2) / 2 / first) / np.sqrt(2 * np.pi * first)
    for n in range(first + 1, last + 1):
        nexts, next_widths = grid(n)
        steps = np.exp(-((nexts[:, None] - sums) ** 2) / 2) / np.sqrt(2 * np.pi)
        density, sums, widths = steps @ (density * widths), nexts, next_widths
    return 1 - float(density @ widths)
