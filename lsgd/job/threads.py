"""How many threads this process computes with on a CPU, and how they wait for each other.

Threads are execution: their number changes the last bits of sums, and how they wait changes none.
"""

import os
from contextlib import suppress
from pathlib import Path

from lsgd.job.launcher import cores, detect

NUMBERS_PER_THREAD = 8_000
"""The numbers in the input of a forward pass for which another thread is worth its start: a pass of
2 images of 32 x 32 x 3 has work for one thread, a pass of 256 images of 8 x 8 for two."""
SPINS, SPINS_OF_A_BUSY_MACHINE = (
    {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"},
    {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"},
)
"""How long an idle thread spins before it sleeps: of GNU's OpenMP in looks at its flag, of Intel's
in milliseconds. The first is longer than the main thread takes between two operators, and a
fifteenth of GNU's own; the second is as good as none where others want the cores."""
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", *SPINS)
LOAD = Path("/proc/loadavg")
"""Linux's count, among others, of the threads of this machine that can run at this moment."""


def limit_spinning(wanted: int) -> None:
    """Let idle threads of torch sleep soon instead of spinning for milliseconds.

    Sooner where the threads of other programs that want a core, so many as `wanted`, are more than
    this job leaves free: a thread that spins keeps its core from the one that it waits for. To be
    called before torch is imported, whose OpenMP library reads the environment once. Nothing
    changes where the environment says how threads wait.
    """
    if any(name in os.environ for name in CHOSEN_BY_USER):
        return
    launch = detect()
    of_this_job = launch.local_size * choose_threads(None, cores(launch))
    busy = wanted > (os.cpu_count() or 1) - of_this_job
    os.environ.update(SPINS_OF_A_BUSY_MACHINE if busy else SPINS)


def count_wanted_cores() -> int:
    """Return how many threads of other programs could run now; 0 where Linux does not say."""
    with suppress(OSError, ValueError, IndexError):
        runnable = int(LOAD.read_text().split()[3].partition("/")[0])
        return max(0, runnable - detect().local_size)
    return 0


def choose_threads(numbers: int | None, cores: int) -> int:
    """Return how many threads a pass with so many input numbers is computed with, at most one per
    core and at most OMP_NUM_THREADS; None stands for a pass that uses all."""
    most = cores
    if (limit := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        most = int(limit)
    return most if numbers is None else max(1, min(most, numbers // NUMBERS_PER_THREAD))
