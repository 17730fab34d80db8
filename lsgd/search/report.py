"""The report page on one search, or several of one space: README.md, index.html and figures."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, quantiles, stdev
from typing import TYPE_CHECKING

from lsgd.files import write_files
from lsgd.recipe.search import Value
from lsgd.report.blocks import Block, Content, Figures, Section, Table
from lsgd.report.drawing import COLOURS, GREY, Figure, draw_figure
from lsgd.report.folder import page_files
from lsgd.report.formatting import NONE, mean_and_std
from lsgd.report.welch import sample_stats
from lsgd.rules.metric import Metric
from lsgd.run.remaining import duration
from lsgd.search.record import SearchRecord
from lsgd.search.space import format_values
from lsgd.search.trial import FAILED, FINISHED, PRUNED, STATES, Trial, best_trial, has_number
from lsgd.tables import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 10
"""The number of best trials in the table."""
PARTS = 8
"""The number of parts of a range of values; a line joins the lowest values of the parts."""


def write_page(records: Sequence[SearchRecord], out: Path, command: str) -> None:
    """Write one report page on searches of one metric, with figures, into an existing folder."""
    figures = _figures(records)
    content = _content(records, figures, command)
    write_files(out, page_files(content, figures))


def _content(records: Sequence[SearchRecord], figures: list[Figure], command: str) -> Content:
    """Compose the content of a report page on searches from their figures and tables."""
    first, metric = records[0], records[0].metric
    points = [point for record in records for point in record.points]
    states = Counter(point.state for point in points)
    told = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    lead = [
        f"{format_count(len(points), 'trial')} of {sum(record.budget for record in records)}: "
        f"{told}. A trial's value is the {metric.definition()}; lower is better."
    ]
    best = best_trial(points)
    if best and best.value is not None:
        lead.append(f"Best: {format_values(best.values)}, {metric.format_labelled(best.value)}.")
    elif any(point.state == FINISHED for point in points):
        lead.append(f"No trial has reached its target: {metric.label}.")
    sections = [Section("Found", [Figures(figures), _best_table(points, metric)])] if best else []
    if any(record.best and record.default for record in records):
        sections.insert(0, Section("Default against best", [*_comparison(records)]))
    sections.append(Section("Time", [_time_table(records)]))
    failed = [point for point in points if point.state == FAILED]
    if failed:
        rows = [[format_values(point.values), point.why] for point in failed]
        sections.append(Section("Failed", [Table(["point", "why"], rows)]))
    sections.append(Section("How it was run", [_versions(first), f"`{command}`"]))
    return Content(first.title, lead, sections)


def _comparison(records: Sequence[SearchRecord]) -> list[Block]:
    """Return a table, with a note, that compares each search's best trial with its recipe."""
    rows = []
    for record in records:
        best = best_trial(record.points)
        if best is None or not record.best or not record.default:
            continue
        reductions = relative_improvement(record)
        rows.append(
            [
                f"{record.name}: {format_values(best.values)}",
                _spread(record.default, record.metric),
                _spread(record.best, record.metric),
                NONE
                if math.isnan(reductions[0])
                else f"{100 * reductions[0]:.1f} ± {100 * reductions[1]:.1f} %",
                str(len(record.best)),
            ]
        )
    metric = records[0].metric
    head = [
        "best trial",
        metric.axis_label("recipe unchanged"),
        metric.axis_label("best"),
        "less by",
    ]
    return [
        Table([*head, "seeds"], rows),
        "Mean ± standard deviation over the holdout seeds, which selected nothing; less by: the "
        "mean over these seeds of the share of the recipe's own value that the best trial saves.",
    ]


def relative_improvement(record: SearchRecord) -> tuple[float, float]:
    """Return mean and standard deviation of the best trial's relative improvement on the recipe.

    Both are over the seeds of the comparison, as shares of the unchanged recipe's final metric; NaN
    if one of these runs never reached its target, or if a metric of the recipe is 0 or less.
    """
    if not all(map(math.isfinite, [*record.best, *record.default])) or min(record.default) <= 0:
        return math.nan, math.nan
    shares = [1 - best / own for best, own in zip(record.best, record.default, strict=True)]
    return fmean(shares), stdev(shares) if len(shares) > 1 else math.nan


def _spread(numbers: Sequence[float], metric: Metric) -> str:
    """Format final metrics as mean and standard deviation, with the count of missed targets."""
    known = [number for number in numbers if math.isfinite(number)]
    parts = [mean_and_std(sample_stats(known, metric))] if known else []
    if never := len(numbers) - len(known):
        parts.append(f"{never} of {len(numbers)} never")
    return ", ".join(parts)


def _best_table(points: Sequence[Trial], metric: Metric) -> Table:
    """Return a table of the best trials of these searches, the lowest value first."""
    finished = {
        tuple(point.values.items()): point for point in points if has_number(point)
    }  # a point that was tried twice appears once
    order = sorted(finished.values(), key=lambda point: point.value or 0.0)[:SHOWN]
    keys = list(order[0].values)
    return Table(
        ["", *keys, metric.axis_label(metric.label)],
        [
            [
                str(place),
                *(_short(point.values[key]) for key in keys),
                mean_and_std(sample_stats([point.value or 0.0], metric)),
            ]
            for place, point in enumerate(order, 1)
        ],
    )


def _short(value: Value) -> str:
    """Format the value of a searched field as text, a float with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _time_table(records: Sequence[SearchRecord]) -> Table:
    """Return a table of the searches' durations, trial rates and epochs saved by pruning."""
    rows = []
    for record in records:
        ended = len(record.ended_trials)
        hour = f"{3600 * ended / record.busy_seconds:.0f}" if record.busy_seconds else NONE
        pruned = sum(point.state == PRUNED for point in record.points)
        at_a_time = (
            f"{record.trial_seconds / record.busy_seconds:.1f}" if record.busy_seconds else NONE
        )
        saved = f"{100 * record.saved_share:.0f} %"
        row = [record.name, str(ended), str(pruned), saved, duration(record.busy_seconds)]
        rows.append([*row, hour, at_a_time])
    head = ["search", "trials", "pruned", "epochs saved", "took", "trials per hour", "at a time"]
    return Table(head, rows)


def _versions(record: SearchRecord) -> str:
    """Return a sentence on the Python, torch and device of a search's runs."""
    start = record.start
    known = [f"{key} {start[key]}" for key in ("python", "torch", "device") if key in start]
    return "Runs: " + (", ".join(known) or "none yet") + "."


def _figures(records: Sequence[SearchRecord]) -> list[Figure]:
    """Draw the figures of a report page on searches, as far as these have data for them."""
    if not any(has_number(point) for record in records for point in record.points):
        return []
    figures = [_best_so_far(records)]
    if figure := _against(records):
        figures.append(figure)
    return figures


def _best_so_far(records: Sequence[SearchRecord]) -> Figure:
    """Draw the lowest trial value so far against the number of trials, a line per sampler."""
    metric = records[0].metric
    groups: dict[str, list[list[float]]] = {}
    for record in records:
        groups.setdefault(record.sampler, []).append(best_so_far(record.ended_trials))

    def plot(axes: "Axes") -> None:
        for colour, (sampler, lines) in zip(_colours(), groups.items(), strict=False):
            middle, low, high = median_and_quartiles(lines)
            x = range(1, len(middle) + 1)
            label = sampler if len(lines) == 1 else f"{sampler}, {len(lines)} searches"
            axes.plot(x, middle, color=colour, label=label, drawstyle="steps-post")
            axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0, step="post")
        finite = [v for lines in groups.values() for line in lines for v in line if v < math.inf]
        best = min(finite)
        if best > 0:
            # The values of the first trials would hide the improvements of the later ones.
            axes.set_ylim(0.95 * best, min(max(finite), 2 * best))
        axes.set_xlabel("points")
        axes.set_ylabel(metric.axis_label(f"lowest {metric.label} so far"))
        axes.legend()

    several = max(map(len, groups.values())) > 1
    title = "Best so far" + (": median and interquartile range" if several else "")
    return draw_figure("best", title, f"{title}, by the number of trials", plot)


def best_so_far(points: Iterable[Trial]) -> list[float]:
    """Return the running minimum of the trials' values, infinite until a trial has a value."""
    lowest, line = math.inf, []
    for point in points:
        lowest = min(lowest, point.value if point.value is not None else math.inf)
        line.append(lowest)
    return line


def median_and_quartiles(
    lines: Sequence[Sequence[float]],
) -> tuple[list[float], list[float], list[float]]:
    """Return median, lower and upper quartile of several curves at each index they all have.

    >>> median_and_quartiles([[3.0, 2.0], [5.0, 1.0], [4.0, 4.0]])
    ([4.0, 2.0], [3.5, 1.5], [4.5, 3.0])
    """
    middle, low, high = [], [], []
    for values in zip(*lines, strict=False):
        if len(values) == 1 or math.inf in values:
            quarters = [sorted(values)[len(values) // 2]] * 3
        else:
            quarters = quantiles(values, n=4, method="inclusive")
        low.append(quarters[0])
        middle.append(quarters[1])
        high.append(quarters[2])
    return middle, low, high


def _against(records: Sequence[SearchRecord]) -> Figure | None:
    """Draw the trials' values against a searched float field, a line per value of another."""
    points = [p for record in records for p in record.points if has_number(p)]
    kinds = {key: {type(point.values[key]) for point in points} for key in points[0].values}
    ranged = [key for key, each in kinds.items() if float in each <= {int, float}]
    if not ranged:
        return None
    key, metric = ranged[0], records[0].metric
    several = [
        other
        for other in points[0].values
        if other != key
        and 1
        < len({repr(point.values[other]) for point in points})
        <= min(len(COLOURS), len(points) // 2)
    ]
    x = [float(point.values[key]) for point in points]
    log = min(x) > 0 and max(x) > 20 * min(x)
    lines: dict[Value, list[Trial]] = {}
    for point in points:
        lines.setdefault(point.values[several[0]] if several else "", []).append(point)

    def plot(axes: "Axes") -> None:
        for colour, which in zip(_colours(), sorted(lines, key=_order), strict=False):
            xy = [(float(p.values[key]), p.value or 0.0) for p in lines[which]]
            label = f"{several[0].rpartition('.')[2]} {_short(which)}" if several else None
            axes.plot(*zip(*xy, strict=True), ls="", marker="o", ms=3, color=colour, alpha=0.5)
            axes.plot(*zip(*lowest(xy, log=log), strict=True), color=colour, label=label)
        if log:
            axes.set_xscale("log")
        if all((point.value or 0.0) > 0 for point in points):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.set_xlabel(key)
        axes.set_ylabel(metric.axis_label(metric.label))
        if several:
            axes.legend()

    title = f"{metric.noun.capitalize()} against {key}"
    return draw_figure("values", f"{title}; lines: the lowest nearby", title, plot)


def _order(value: Value) -> tuple[bool, float, str]:
    """Return a sort key for the values of a searched field that puts numbers before text."""
    return (isinstance(value, str), 0.0 if isinstance(value, str) else float(value), str(value))


def lowest(xy: Sequence[tuple[float, float]], *, log: bool) -> list[tuple[float, float]]:
    """Return the lowest point (by y) in each of PARTS equal parts of the x range, ordered by x."""
    scale: Callable[[float], float] = math.log if log else float
    low, high = scale(min(x for x, _ in xy)), scale(max(x for x, _ in xy))
    parts: dict[int, tuple[float, float]] = {}
    for x, y in xy:
        part = int(PARTS * (scale(x) - low) / (high - low)) if high > low else 0
        parts[part] = min(parts.get(part, (x, y)), (x, y), key=lambda each: each[1])
    return sorted(parts.values())


def _colours() -> list[str]:
    return [*COLOURS, GREY]
