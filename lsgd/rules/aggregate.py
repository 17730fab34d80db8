"""One number of several runs: mean and standard deviation, median, or olympic mean.

A run that never reaches its target has an infinite number. The median bears less than half of such
runs, the olympic mean one, and the mean none.
"""

import math
import statistics
from collections.abc import Sequence

DROPPED = 1
"""The runs that an olympic mean leaves out at each end: the best and the worst."""


def mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample standard deviation, with n - 1 below the sum; nan of a single run.

    >>> mean_and_deviation([34, 35, 36]), mean_and_deviation([34, 35, math.inf])
    ((35.0, 1.0), (inf, nan))
    """
    mean = statistics.fmean(numbers)
    if len(numbers) < 2 or math.isinf(mean):
        return mean, math.nan
    return mean, statistics.stdev(numbers)


def median(numbers: Sequence[float]) -> float:
    """The number in the middle; infinite if as many as half of the runs never reach their target.

    >>> median([34, math.inf, 35]), median([34, math.inf])
    (35, inf)
    """
    return statistics.median(numbers)


def olympic_mean(numbers: Sequence[float]) -> float:
    """The mean without the best and the worst; infinite from two infinite numbers on.

    Raises ValueError for less than three numbers, of which nothing would be left.

    >>> olympic_mean([34, 35, 36, 36, math.inf])
    35.666666666666664
    """
    if len(numbers) <= 2 * DROPPED:
        raise ValueError(f"an olympic mean is of 3 numbers or more, not of {len(numbers)}")
    return statistics.fmean(sorted(numbers)[DROPPED:-DROPPED])
