"""The number of CPU threads of this process, and how idle threads wait.

Threads are execution: their number changes the last bits of sums, and how they wait changes none.
"""

import os

from lsgd.job.launcher import cores, detect_launch, omp_num_threads
from lsgd.job.system import count_runnable_threads

NUMBERS_PER_THREAD = 8_000
"""The number of input elements of a forward pass for which one more thread pays off.

A micro-batch of 2 images of 32 x 32 x 3 gets one thread, one of 256 images of 8 x 8 two.
"""
SPINS, SPINS_OF_A_BUSY_MACHINE = (
    {"GOMP_SPINCOUNT": "20000", "KMP_BLOCKTIME": "1"},
    {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"},
)
"""The environment variables that set how long an idle thread spins before it sleeps.

GNU's OpenMP counts looks at its flag, Intel's milliseconds. The first values are longer than the
main thread takes between two operators, and a fifteenth of GNU's default; the second are
practically zero, for machines where other programs need the cores.
"""
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", *SPINS)


def limit_spinning(wanted: int) -> None:
    """Make idle OpenMP threads of torch sleep soon, instead of spinning for milliseconds.

    They sleep even sooner where `wanted`, the runnable threads of other programs, is more than the
    cores that this job leaves free: a spinning thread keeps its core from the thread it waits for.
    Call this before torch is imported, since its OpenMP library reads the environment once. Nothing
    changes where the environment says how threads wait.
    """
    if any(name in os.environ for name in CHOSEN_BY_USER):
        return
    launch = detect_launch()
    of_this_job = launch.local_size * choose_threads(None, cores(launch))
    busy = wanted > (os.cpu_count() or 1) - of_this_job
    os.environ.update(SPINS_OF_A_BUSY_MACHINE if busy else SPINS)


def count_wanted_cores() -> int:
    """Return the number of other programs' runnable threads on this machine; 0 if unknown."""
    runnable = count_runnable_threads()
    return 0 if runnable is None else max(0, runnable - detect_launch().local_size)


def choose_threads(numbers: int | None, cores: int) -> int:
    """Return the number of CPU threads for a forward pass with this many input elements.

    It is at most one per core and at most OMP_NUM_THREADS; None stands for a pass that uses all.
    """
    most = omp_num_threads() or cores
    return most if numbers is None else max(1, min(most, numbers // NUMBERS_PER_THREAD))
