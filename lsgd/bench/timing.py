"""The one way to compare speeds: interleaved rounds, ratios within a round, medians, an interval.

A machine is not equally fast all the time. So each round measures every candidate once, one right
after the other, and a ratio compares two candidates within a round; what slows a whole round down
cancels. The interval is made of order statistics, which supposes nothing about how times spread.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from lsgd.errors import Refused

CONFIDENCE = 0.95
LEAST_ROUNDS = 6
"""The fewest rounds whose whole range holds the median with at least 95 %."""

TimedWork = Callable[[int], int]
"""A function that does the work of the round of this number; returns the amount of work."""
Samples = dict[str, list[float]]
"""A number of each candidate in each round: mostly its work per second."""


@dataclass(frozen=True)
class Estimate:
    """A median, and the interval that holds the true one with at least 95 %."""

    median: float
    low: float
    high: float

    def against(self, bar: float) -> str:
        """Whether this is at least the bar: `yes`, `no`, or `not resolved` if the bar is inside."""
        if self.low <= bar <= self.high:
            return "not resolved"
        return "yes" if self.low > bar else "no"

    def within(self, bar: float) -> str:
        """Whether this is at most the bar: `yes`, `no`, or `not resolved` if the bar is inside."""
        return {"yes": "no", "no": "yes"}.get(self.against(bar), "not resolved")

    def shown(self, form: str) -> str:
        """The median and its interval, all in the format `form`, such as `.3f`."""
        return f"{self.median:{form}} ({self.low:{form}} to {self.high:{form}})"


def measure(candidates: Mapping[str, TimedWork], rounds: int, *, what: str) -> Samples:
    """The speed of every candidate in every round, after a first one that does not count.

    Neighbours are in each other's way most, so every round goes through them in another order.
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
    """Raise Refused for so few rounds that they have no interval."""
    if rounds < LEAST_ROUNDS:
        raise Refused(
            f"--rounds {rounds} is too few for an interval of 95 %; write {LEAST_ROUNDS} or more"
        )


def estimate(values: Sequence[float]) -> Estimate:
    """The median of the rounds with the narrowest symmetric interval of order statistics."""
    ordered = sorted(values)
    k = _cut(len(ordered))
    return Estimate(statistics.median(ordered), ordered[k], ordered[-1 - k])


def ratio(speeds: Samples, name: str, baseline: str) -> Estimate:
    """The speed of a candidate over that of the baseline, compared within each round."""
    pairs = zip(speeds[name], speeds[baseline], strict=True)
    return estimate([ours / theirs for ours, theirs in pairs])


def cost(speeds: Samples, name: str, baseline: str) -> Estimate:
    """The time of a candidate over that of the baseline, compared within each round."""
    return ratio(speeds, baseline, name)


def order(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: each candidate is first in turn, and every second cycle is reversed."""
    start = number % len(names)
    turned = [*names[start:], *names[:start]]
    return turned if number // len(names) % 2 == 0 else turned[::-1]


def _cut(rounds: int) -> int:
    """The number of lowest, and of highest, values that the interval can leave out.

    The true median lies below the (k+1)-th lowest of n values with probability
    P(binomial(n, 1/2) <= k), and likewise above.

    >>> [_cut(rounds) for rounds in (6, 8, 9, 11, 12, 20)]
    [0, 0, 1, 1, 2, 5]
    """
    k, outside = 0, 1 / 2**rounds
    while 2 * (outside := outside + math.comb(rounds, k + 1) / 2**rounds) <= 1 - CONFIDENCE:
        k += 1
    return k
