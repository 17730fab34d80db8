"""The time of each phase of a step by process, and the straggler that makes the others wait.

A step of synchronous SGD ends on all processes at once, so its duration does not show which process
is slow: the fast ones wait in the all-reduce of the gradients. That wait is the phase
`communication`, and the slowest process is the one whose other phases take longest.
"""

import statistics
from dataclasses import dataclass

from lsgd.tables import format_count, markdown_table

OWN_PHASES = ("data wait", "forward", "backward", "optimizer")
"""The phases of a process's own work, without waiting for other processes."""
PHASES = (*OWN_PHASES[:3], "communication", OWN_PHASES[3])
BETWEEN_STEPS = "between steps"

PhaseTimes = dict[str, float]
"""Seconds of each phase in a step, and between it and the previous step."""


@dataclass(frozen=True)
class ProcessTiming:
    """The times of one process's phases in each profiled training step."""

    rank: int
    host: str
    workers: int
    """The number of the run's workers that this process hosts."""
    steps: list[PhaseTimes]

    def mean(self, phase: str) -> float:
        """Return the mean seconds per training step of a phase on this process."""
        return statistics.fmean(step.get(phase, 0.0) for step in self.steps)

    @property
    def own(self) -> list[float]:
        """The seconds of each step that this process worked, without waiting for others."""
        return [sum(step.get(phase, 0.0) for phase in OWN_PHASES) for step in self.steps]


def phase_table(timings: list[ProcessTiming]) -> str:
    """Format the minimum, median and maximum over processes of each phase's mean time."""
    step = statistics.median(sum(map(each.mean, PHASES)) for each in timings)
    rows = []
    for phase in (*PHASES, BETWEEN_STEPS):
        means = [each.mean(phase) for each in timings]
        bounds = min(means), statistics.median(means), max(means)
        share = f"{100 * bounds[1] / step:.1f} %" if phase != BETWEEN_STEPS else ""
        rows.append([phase, *(f"{1000 * seconds:.2f}" for seconds in bounds), share])
    return markdown_table(["ms per step", "min", "median", "max", "of the step"], rows)


def process_table(timings: list[ProcessTiming]) -> str:
    """Format each phase's mean time on each process as a Markdown table."""
    phases = (*PHASES, BETWEEN_STEPS)
    return markdown_table(
        ["process", "host", "workers", *phases],
        [
            [
                str(each.rank),
                each.host,
                str(each.workers),
                *(f"{1000 * each.mean(phase):.2f}" for phase in phases),
            ]
            for each in timings
        ],
    )


def describe_straggler(timings: list[ProcessTiming]) -> str:
    """Return a sentence that names the slowest process and its slow phase, or says there is none.

    A straggler is slower than the median of the others by 5 % of a step, and by 3 times the
    standard error of that difference over the steps. Only processes with as many workers as any
    other are compared, as more workers need more time.
    """
    if len(timings) == 1:
        return "one process, which waits for no other"
    most = max(each.workers for each in timings)
    equal = [each for each in timings if each.workers == most]
    slow = max(equal, key=lambda each: sum(each.own))
    others = [each for each in equal if each is not slow]
    if not others:
        return (
            f"process {slow.rank} on {slow.host} hosts {format_count(most, 'worker')}, more than "
            "any other, so that there is no process to compare it with"
        )
    excess = [
        own - statistics.median(rest)
        for own, *rest in zip(slow.own, *(each.own for each in others), strict=True)
    ]
    mean = statistics.fmean(excess)
    error = statistics.stdev(excess) / len(excess) ** 0.5 if len(excess) > 1 else mean
    step = statistics.median(sum(map(each.mean, PHASES)) for each in timings)
    if mean < 0.05 * step or mean < 3 * error:
        return (
            "no process is slower than the others beyond noise: the most is process "
            f"{slow.rank}, by {1000 * mean:.2f} ± {1000 * error:.2f} ms of a step of "
            f"{1000 * step:.2f} ms"
        )
    more = {
        phase: slow.mean(phase) - statistics.median(each.mean(phase) for each in others)
        for phase in OWN_PHASES
    }
    cause = max(more, key=more.__getitem__)
    return (
        f"process {slow.rank} on {slow.host} makes the others wait, by its {cause}: "
        f"{1000 * slow.mean(cause):.2f} ms a step, {1000 * more[cause]:.2f} ms more than the "
        f"others (median), of a step of {1000 * step:.2f} ms"
    )
