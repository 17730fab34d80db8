"""Numbers as they are written in a report."""

import math

from lsgd.report.groups import Group
from lsgd.report.welch import Difference
from lsgd.run.read import Run

NONE = "–"
"""The sign for a missing value."""


def spread(group: Group) -> str:
    """Mean error in percent of the finished runs and its standard deviation, where there is one,
    and how many runs diverged."""
    sample = group.sample
    parts = []
    if sample:
        parts = [f"{sample.mean:.2f}" if sample.n < 2 else f"{sample.mean:.2f} ± {sample.std:.2f}"]
    if group.diverged:
        parts.append(f"{group.diverged} of {len(group.runs)} diverged")
    return ", ".join(parts) or NONE


def error_of(run: Run) -> str:
    """The error of a run that has ended, in words."""
    return f"{run.error:.2f} %" if run.finished else "diverged"


def signed(value: float) -> str:
    """A difference in points, with a minus sign that is as wide as the plus."""
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
