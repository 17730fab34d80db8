"""Numbers as they are written in a report."""

import math

from lsgd.report.groups import Group
from lsgd.report.welch import Difference, Sample
from lsgd.run.read import Run

NONE = "–"
"""The sign for a missing value."""


def mean_and_std(sample: Sample) -> str:
    """The mean of a sample and its standard deviation, where there is one."""
    return f"{sample.mean:.2f}" if sample.n < 2 else f"{sample.mean:.2f} ± {sample.std:.2f}"


def spread(group: Group) -> str:
    """Mean number of the finished runs and its standard deviation, where there is one, and how
    many runs diverged."""
    parts = [mean_and_std(group.sample)] if group.sample else []
    if group.diverged:
        parts.append(f"{group.diverged} of {len(group.runs)} diverged")
    return ", ".join(parts) or NONE


def number_of(run: Run) -> str:
    """The number of a run that has ended, in words."""
    return run.metric.amount(run.number) if run.finished else "diverged"


def signed(value: float) -> str:
    """A difference, with a minus sign that is as wide as the plus."""
    return f"{round(value, 2) or 0.0:+.2f}".replace("-", "−")


def interval(gap: Difference) -> str:
    """A difference and its 95 % interval, in words."""
    if math.isinf(gap.low):
        return f"{signed(gap.mean)} (no interval)"
    return f"{signed(gap.mean)} ({signed(gap.low)} to {signed(gap.high)})"


def count(number: int, noun: str) -> str:
    """A number of things, one of them without an s."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def steps(group: Group) -> str:
    """How many steps an epoch of this group has, in words."""
    return f"{count(group.recipe.steps_per_epoch, 'step')} per epoch"


def short(size: int) -> str:
    """A minibatch as the paper writes it: 8192 is 8k."""
    return f"{size // 1024}k" if size % 1024 == 0 else str(size)
