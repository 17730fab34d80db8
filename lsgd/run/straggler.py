"""The straggler of an epoch: the host whose process makes the others wait."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

WORTH_NAMING = 0.1
"""The share of the time by which a process is behind the others from which on it is named.

Leaving that host out would make the run about a tenth faster. The waits of equal processes differ
by some percent.
"""


class ProcessWaits(NamedTuple):
    """The shares of an epoch's time that one process has waited, and what it hosts."""

    host: str
    workers: int
    """The number of the run's workers that this process hosts."""
    communication: float
    """The share that it waited for other processes; 0 between GPUs, where only the device waits."""
    data: float
    """The share that it waited for its data loader."""


def find_straggler(processes: Sequence[ProcessWaits]) -> str:
    """Return the host of the process for which the others wait, or an empty string for none.

    All processes end a synchronous step together, so the one that works longest waits least for the
    others; a GPU's wait is unknown, and there a process counts that waits longer for its data. Only
    processes with as many workers as any other are compared, as more workers need more time, and
    on one machine there is no host to name.

    >>> fast, slow = ProcessWaits("a", 8, 0.4, 0.0), ProcessWaits("b", 8, 0.05, 0.0)
    >>> find_straggler([fast, slow, fast]), find_straggler([fast, fast])
    ('b', '')
    """
    if len({each.host for each in processes}) == 1:
        return ""
    most = max(each.workers for each in processes)
    equal = [each for each in processes if each.workers == most]
    delays = [[-each.communication for each in equal], [each.data for each in equal]]
    if max(each.communication for each in equal) >= WORTH_NAMING:
        delays = delays[:1]  # the wait for others is known, and decides
    for delay in delays:
        slow = delay.index(max(delay))
        others = delay[:slow] + delay[slow + 1 :]
        if others and delay[slow] - statistics.median(others) >= WORTH_NAMING:
            return equal[slow].host
    return ""
