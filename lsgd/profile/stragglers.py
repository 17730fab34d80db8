"""The time of each phase of a step by process, and the process that makes the others wait.

A step of synchronous SGD ends on all processes at once, so its length does not tell which
process is slow: the fast ones wait for the sum of the gradients. That wait is the phase
`communication`, and the slowest process is the one whose other phases take longest.
"""

import statistics
from dataclasses import dataclass

from lsgd.tables import markdown

OWN = ("data wait", "forward", "backward", "optimizer")
"""The phases of a process's own work."""
PHASES = (*OWN[:3], "communication", OWN[3])
BETWEEN = "between steps"

PhaseTimes = dict[str, float]
"""Seconds of each phase in a step, and between it and the one before."""


@dataclass(frozen=True)
class Timing:
    """The measurements of one process."""

    rank: int
    host: str
    workers: int
    """The number of the run's workers that it hosts."""
    steps: list[PhaseTimes]

    def mean(self, phase: str) -> float:
        """Seconds of the phase per step."""
        return statistics.fmean(step.get(phase, 0.0) for step in self.steps)

    @property
    def own(self) -> list[float]:
        """Seconds that its own phases take, in each step."""
        return [sum(step.get(phase, 0.0) for phase in OWN) for step in self.steps]


def split(timings: list[Timing]) -> str:
    """The phases of a step over the processes, each with its mean over the steps, as Markdown."""
    step = statistics.median(sum(map(each.mean, PHASES)) for each in timings)
    rows = []
    for phase in (*PHASES, BETWEEN):
        means = [each.mean(phase) for each in timings]
        bounds = min(means), statistics.median(means), max(means)
        share = f"{100 * bounds[1] / step:.1f} %" if phase != BETWEEN else ""
        rows.append([phase, *(f"{1000 * seconds:.2f}" for seconds in bounds), share])
    return markdown(["ms per step", "min", "median", "max", "of the step"], rows)


def by_process(timings: list[Timing]) -> str:
    """The phases of a step on each process, as Markdown."""
    phases = (*PHASES, BETWEEN)
    return markdown(
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


def slowest(timings: list[Timing]) -> str:
    """The process that makes the others wait, and the cause, in a sentence; or that none does.

    It has to be slower than the median of the others by 5 % of a step, and by 3 times the standard
    error of that over the steps.
    """
    if len(timings) == 1:
        return "one process: it waits for no other"
    slow = max(timings, key=lambda each: sum(each.own))
    others = [each for each in timings if each is not slow]
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
        for phase in OWN
    }
    cause = max(more, key=more.__getitem__)
    sentence = (
        f"process {slow.rank} on {slow.host} makes the others wait, by its {cause}: "
        f"{1000 * slow.mean(cause):.2f} ms a step, {1000 * more[cause]:.2f} ms more than the "
        f"others (median), of a step of {1000 * step:.2f} ms"
    )
    hosted = statistics.median(each.workers for each in others)
    if slow.workers > hosted:
        sentence += f"; it hosts {slow.workers} workers and they {hosted:g}"
    return sentence
