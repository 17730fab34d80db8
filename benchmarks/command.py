"""The main functions of the benchmarks."""

from collections.abc import Callable, Sequence

from lsgd.job.command import run_command


def as_command(measure: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], int]:
    """Return the main function of a benchmark, which runs its command line.

    It returns the exit code.
    """
    return lambda argv: run_command(lambda: measure(argv))
