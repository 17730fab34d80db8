"""Aggregates over runs: mean and standard deviation, and olympic mean.

A run that never reaches its target has an infinite value. The olympic mean stays finite with one
such run, the mean with none, and `statistics.median` with less than half of them.
"""

import math
import statistics
from collections.abc import Sequence

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
