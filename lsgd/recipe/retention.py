"""Which checkpoints a run keeps: the newest ones, or a few that are spread over the run."""

import heapq
from collections import Counter
from collections.abc import Callable, Collection

VERIFY = "verify"
"""The value of keep_checkpoints with which the kept checkpoints are spread over the run."""
NEWEST = 2
"""The number of newest checkpoints of a spread: a run resumes from the second if the newest is
damaged."""
PARTS = 5
"""The number of equal parts of the run's steps from which a spread has checkpoints."""
OF_PART = 2
"""The number of checkpoints that are kept of each part: its first ones.

They are two, since lsgd.verify computes the second again from the first.
"""

Retention = Callable[[Collection[int]], Collection[int]]
"""The type of a function that takes the steps of all checkpoints and returns those to keep."""


def newest_steps(saved: Collection[int], count: int = NEWEST) -> set[int]:
    """Return the `count` last steps of these saved ones.

    >>> newest_steps([10, 30, 20])
    {20, 30}
    """
    return set(heapq.nlargest(count, set(saved)))


def spread_steps(saved: Collection[int], total_steps: int) -> set[int]:
    """Return at most PARTS x OF_PART + NEWEST of these saved steps, spread over a run.

    They are the first steps of each part of the run, and the newest. A step that is left out once
    is never needed later, so that a run may apply the rule after each save.

    >>> sorted(spread_steps(range(10, 101, 5), total_steps=100))
    [10, 15, 25, 30, 45, 50, 65, 70, 85, 90, 95, 100]
    """
    kept, in_part = newest_steps(saved), Counter[int]()
    for step in sorted(set(saved)):
        part = (step - 1) * PARTS // total_steps
        in_part[part] += 1
        if in_part[part] <= OF_PART:
            kept.add(step)
    return kept
