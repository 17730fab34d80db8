"""Why a run is slow, where the machine shows it: one sentence, once, after half a minute."""

import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 30.0
"""Seconds of training before anything is said of its speed."""
DATA_WAIT, CORE_WAIT = 0.5, 0.3
"""The shares of the time from which on waiting for data, or for a core, is worth a sentence."""
WORTH_SAYING = 600.0
"""The shortest remaining time of a run, in seconds, in which that sentence helps."""
HOPELESS = 7 * 24 * 3600.0
"""The remaining time, in seconds, from which on a run on a CPU is probably not meant."""
SCHEDULE = Path("/proc/self/schedstat")
"""Linux's count, among others, of the nanoseconds that this process's main thread has waited for a
core while it could have run."""


class SlownessCheck:
    """Looks once, after PATIENCE seconds, for what makes a run slower than it could be."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.core_wait_before = 0.0
        self.data_wait = self._of_epoch = 0.0
        self.done = False

    def reason(self, data_wait: float, seconds_left: float | None, device: str) -> str:
        """Return a sentence with the reason and the fix, once; an empty string before and after it.

        `data_wait` is the time in seconds that this epoch has waited for batches so far.
        """
        now = time.perf_counter()
        if self.began is None:
            self.began, self._of_epoch, self.core_wait_before = now, data_wait, core_wait()
        # A new epoch is counted from nothing.
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
    """Return why a run is slow and what helps, from the shares of its time and the rest of it.

    >>> slowness(0.8, 0.0, 3600.0, "cuda")[:51]
    'slow: 80 % of the time training waits for its data;'
    >>> slowness(0.1, 0.1, 3600.0, "cpu")
    ''
    """
    if core_wait >= CORE_WAIT:
        return (
            f"slow: for {core_wait:.0%} of the time no core is free for training; other programs, "
            "or too many threads or processes of this run, take them: end those, or start fewer "
            "(OMP_NUM_THREADS=1 for one thread per process)"
        ).replace("%", " %")
    if data_wait >= DATA_WAIT:
        return (
            f"slow: {data_wait:.0%} of the time training waits for its data; give the loader more "
            "cores (inputs.decoders=N), a faster disk or inputs=dali; `lsgd bench inputs` times it"
        ).replace("%", " %")
    if device == "cpu" and seconds_left >= HOPELESS:
        return (
            "slow: on a CPU this run takes weeks or more; it is meant for GPUs. rehearse=true runs "
            "it in miniature, and +recipe=fashion_bs256 is a run for a CPU"
        )
    return ""


def core_wait() -> float:
    """Return the seconds that the main thread has waited for a core; 0 if Linux does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(SCHEDULE.read_text().split()[1]) / 1e9
    return 0.0
