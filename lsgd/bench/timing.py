"""Comparison of speeds by ratios within interleaved rounds, with medians and intervals.

A machine's speed varies over time. So each round measures every candidate once, one right after the
other, and a ratio compares two candidates within a round; a slowdown of a whole round cancels. The
intervals are made of order statistics, which assume nothing about the distribution.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from lsgd.errors import UsageError

CONFIDENCE = 0.95
LEAST_ROUNDS = 6
"""The fewest rounds whose whole range contains the median with at least 95 % probability."""

TimedWork = Callable[[int], int]
"""A function that does the work of a round, given its number, and returns the amount of work."""
Samples = dict[str, list[float]]
"""A measurement of each candidate in each round, mostly its work per second."""


@dataclass(frozen=True)
class Estimate:
    """The median of measurements with its confidence interval of at least 95 %."""

    median: float
    low: float
    high: float

    def compare_at_least(self, threshold: float) -> str:
        """Return `yes` or `no`, or `not resolved` if the interval contains the threshold."""
        if self.low <= threshold <= self.high:
            return "not resolved"
        return "yes" if self.low > threshold else "no"

    def compare_at_most(self, threshold: float) -> str:
        """Return whether the estimate is at most `threshold`: `yes`, `no` or `not resolved`."""
        return {"yes": "no", "no": "yes"}.get(self.compare_at_least(threshold), "not resolved")

    def shown(self, form: str) -> str:
        """Format the median and its confidence interval with a format such as `.3f`."""
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"


def measure(candidates: Mapping[str, TimedWork], rounds: int, *, what: str) -> Samples:
    """Measure the work per second of every candidate of a benchmark in every round.

    A first round is not counted. Neighbours disturb each other most, so every round has another
    order.
    """
    check_rounds(rounds)
    speeds: Samples = {name: [] for name in candidates}
    names = list(candidates)
    total = (rounds + 1) * len(names)
    with tqdm(total=total, desc=what, unit="", disable=None, leave=False) as bar:
        for number in range(rounds + 1):
            for name in order(names, number):
                bar.set_postfix_str(name)
                begin = time.perf_counter()
                done = candidates[name](number)
                if number:
                    speeds[name].append(done / (time.perf_counter() - begin))
                bar.update()
    return speeds


def check_rounds(rounds: int) -> None:
    """Raise UsageError for fewer rounds of a benchmark than a confidence interval needs."""
    if rounds < LEAST_ROUNDS:
        raise UsageError(
            f"--rounds {rounds} is too few for an interval of 95 %; write {LEAST_ROUNDS} or more"
        )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of measurements with the narrowest symmetric confidence interval."""
    ordered = sorted(values)
    k = _cut(len(ordered))
    return Estimate(statistics.median(ordered), ordered[k], ordered[-1 - k])


def speed_ratio(speeds: Samples, name: str, baseline: str) -> Estimate:
    """Return the ratio of a candidate's speed to the baseline's, compared within each round."""
    pairs = zip(speeds[name], speeds[baseline], strict=True)
    return estimate([ours / theirs for ours, theirs in pairs])


def time_ratio(speeds: Samples, name: str, baseline: str) -> Estimate:
    """Return the ratio of a candidate's time to the baseline's, compared within each round."""
    return speed_ratio(speeds, baseline, name)


def order(names: Sequence[str], number: int) -> list[str]:
    """Return the order in which a round measures its candidates, another one in each round.

    Each candidate is first in turn, and every second cycle is reversed.
    """
    start = number % len(names)
    turned = [*names[start:], *names[:start]]
    return turned if number // len(names) % 2 == 0 else turned[::-1]


def _cut(rounds: int) -> int:
    """Return how many of the lowest and of the highest measurements an interval can omit.

    The true median is below the (k+1)-th lowest of n values with probability P(binomial(n, 1/2) <=
    k), and likewise above.

    >>> [_cut(rounds) for rounds in (6, 8, 9, 11, 12, 20)]
    [0, 0, 1, 1, 2, 5]
    """
    k, outside = 0, 1 / 2**rounds
    while 2 * (outside := outside + math.comb(rounds, k + 1) / 2**rounds) <= 1 - CONFIDENCE:
        k += 1
    return k
