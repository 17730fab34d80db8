"""The formatting of numbers in a report."""

import math

from lsgd.report.groups import RecipeRuns
from lsgd.report.welch import Difference, SampleStats
from lsgd.rules.metric import format_decimal
from lsgd.run.read import Run
from lsgd.tables import format_count

NONE = "–"
"""The sign for a missing value."""


def mean_and_std(sample: SampleStats) -> str:
    """Format the mean of a metric over runs as text, with the standard deviation if known.

    >>> mean_and_std(SampleStats(3, 23.5, 0.25)), mean_and_std(SampleStats(3, 0.0042, 1e-4, 5))
    ('23.50 ± 0.25', '0.00420 ± 0.00010')
    """
    mean, std = (format_decimal(each, sample.decimals) for each in (sample.mean, sample.std))
    return mean if sample.n < 2 else f"{mean} ± {std}"


def format_group(group: RecipeRuns) -> str:
    """Format a recipe's mean and standard deviation, and count diverged and unsuccessful runs.

    Unsuccessful runs never reached the metric's target.
    """
    parts = [mean_and_std(group.sample)] if group.sample else []
    if group.diverged:
        parts.append(f"{group.diverged} of {len(group.counted)} diverged")
    if group.never_reached:
        parts.append(f"{len(group.never_reached)} of {len(group.counted)} never")
    return ", ".join(parts) or NONE


def format_final_metric(run: Run) -> str:
    """Format the final metric of a run as text, or return "diverged"."""
    return run.metric.format_value(run.final_metric) if run.finished else "diverged"


def signed(value: float, decimals: int = 2) -> str:
    """Format a difference with its sign and some digits, the minus as wide as the plus."""
    return format_decimal(round(value, decimals) or 0.0, decimals, "+").replace("-", "−")


def interval(gap: Difference) -> str:
    """Format a difference of means and its confidence interval as text.

    >>> interval(Difference(-0.003, -math.inf, math.inf, 5)), interval(Difference(-0.003, -0.2, 1))
    ('−0.00300 (no interval)', '+0.00 (−0.20 to +1.00)')
    """
    mean, low, high = (signed(each, gap.decimals) for each in (gap.mean, gap.low, gap.high))
    match math.isinf(gap.low), math.isinf(gap.high):
        case True, True:
            return f"{mean} (no interval)"
        case True, False:
            return f"{mean} or less (at most {high})"
        case False, True:
            return f"{mean} or more (at least {low})"
    return f"{mean} ({low} to {high})"


def percent(share: float) -> str:
    """Format a confidence level as text, such as 95 % or 98.5 %."""
    return f"{100 * share:.3g} %"


def steps(group: RecipeRuns) -> str:
    """Format the number of steps per epoch of a recipe as text."""
    return f"{format_count(group.recipe.steps_per_epoch, 'step')} per epoch"


def format_batch_size(size: int) -> str:
    """Format a minibatch size as the paper writes it, with 8192 as 8k."""
    return f"{size // 1024}k" if size % 1024 == 0 else str(size)
