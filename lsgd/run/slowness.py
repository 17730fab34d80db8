"""Why a run is slow: the check that says it once, and the host that makes the others wait."""

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

from lsgd.job.system import core_wait

PATIENCE = 30.0
"""The seconds of training before the check."""
DATA_WAIT, CORE_WAIT = 0.5, 0.3
"""The shares of the time waiting for data, or for a core, from which on it is reported."""
WORTH_SAYING = 600.0
"""The shortest remaining time of a run, in seconds, for which the check reports anything."""
HOPELESS = 7 * 24 * 3600.0
"""The remaining time, in seconds, from which on a run on a CPU is probably a mistake."""
WORTH_NAMING = 0.1
"""The share of the time by which a process is behind the others from which on it is named.

Leaving that host out would make the run about a tenth faster. The waits of equal processes differ
by some percent.
"""


class SlownessCheck:
    """A check that looks once, after PATIENCE seconds of training, for why the run is slow."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.core_wait_before = 0.0
        self.data_wait = self._of_epoch = 0.0
        self.done = False

    def reason(self, data_wait: float, seconds_left: float | None, device: str) -> str:
        """Return why the run is slow and the fix, once, after PATIENCE seconds; else ''.

        `data_wait` is the time in seconds that this epoch has waited for batches so far.
        """
        now = time.perf_counter()
        if self.began is None:
            self.began, self._of_epoch, self.core_wait_before = now, data_wait, core_wait()
        # data_wait restarts from 0 in each epoch.
        self.data_wait += data_wait - (self._of_epoch if data_wait >= self._of_epoch else 0.0)
        self._of_epoch = data_wait
        elapsed = now - self.began
        if self.done or elapsed < PATIENCE or seconds_left is None:
            return ""
        self.done = True
        if seconds_left < WORTH_SAYING:
            return ""
        core = core_wait() - self.core_wait_before
        return slowness(self.data_wait / elapsed, core / elapsed, seconds_left, device)


def slowness(data_wait: float, core_wait: float, seconds_left: float, device: str) -> str:
    """Return why a run is slow and the fix, from the shares of time it waits; empty if it is not.

    >>> slowness(0.8, 0.0, 3600.0, "cuda")[:36]
    'slow: 80 % of the time is data wait;'
    >>> slowness(0.1, 0.1, 3600.0, "cpu")
    ''
    """
    if core_wait >= CORE_WAIT:
        return (
            f"slow: for {core_wait:.0%} of the time no core is free for training, because of "
            "other programs, or too many threads or processes of this run; stop those, or start "
            "fewer (OMP_NUM_THREADS=1 for one thread per process)"
        ).replace("%", " %")
    if data_wait >= DATA_WAIT:
        return (
            f"slow: {data_wait:.0%} of the time is data wait; give the loader more "
            "cores (inputs.decoders=N), a faster disk or inputs=dali; `lsgd bench inputs` times it"
        ).replace("%", " %")
    if device == "cpu" and seconds_left >= HOPELESS:
        return (
            "slow: on a CPU this run takes weeks or more; it is meant for GPUs. dry_run=true "
            "runs it in miniature, and recipe=fashion_bs256 is a run for a CPU"
        )
    return ""


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
