"""How many threads this process computes with on a CPU, and how they wait for each other.

Threads are execution: their number changes the last bits of sums, and nothing else.
"""

import os

NUMBERS_PER_THREAD = 10_000
"""The numbers in the input of a forward pass for which another thread is worth its start: a pass of
256 images of 8 x 8 has work for one, a pass of 32 images of 28 x 28 for two."""
SPIN = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
"""How long an idle thread spins before it sleeps, of GNU's OpenMP in looks at its flag and of
Intel's in milliseconds: about as long as the main thread takes between two operators."""
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", *SPIN)


def spin_briefly() -> None:
    """Let idle threads of torch sleep soon instead of spinning for milliseconds.

    To be called before torch is imported, whose OpenMP library reads the environment once.

    A thread that spins keeps its core from the one that it waits for, where others use the machine
    too. Nothing changes where the environment says how threads wait.
    """
    if not any(name in os.environ for name in CHOSEN_BY_USER):
        os.environ.update(SPIN)


def choose_threads(numbers: int | None, cores: int) -> int:
    """Return how many threads a pass with so many input numbers is computed with, at most one per
    core and at most OMP_NUM_THREADS; None stands for a pass that uses all."""
    most = cores
    if (limit := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        most = int(limit)
    return most if numbers is None else max(1, min(most, numbers // NUMBERS_PER_THREAD))
