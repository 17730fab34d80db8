"""Plots of plans over the number of GPUs or workers."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from statistics import median

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsgd.plan.table import RunEstimate
from lsgd.plan.throughput import StrategyThroughput
from lsgd.plan.time_to_target import TargetPlan, fastest, steps_to
from lsgd.recipe.published_points import DISPLAYED_LABELS, PublishedPoints
from lsgd.rules.convergence import reference_at


def draw(
    name: str, fixed: Sequence[RunEstimate], growing: Sequence[RunEstimate], workers: int
) -> dict[str, bytes]:
    """Plot a run's estimated hours and efficiency over GPUs; return image files by file name."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = {"one worker on each GPU": growing, f"{name}, {workers} workers": fixed}
    for (label, rows), marker in zip(labels.items(), "so", strict=True):
        hours = {row.step.gpus: row.hours for row in rows if row.hours is not None}
        left.plot([*hours], [*hours.values()], marker=marker, markersize=4, label=label)
        shares = {row.step.gpus: row.efficiency for row in rows}
        right.plot([*shares], [*shares.values()], marker=marker, markersize=4, label=label)
    _axes(left, "GPUs", "hours of the training steps")
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda hours, _: f"{hours:g}")
    _axes(right, "GPUs", "images/s and GPU, share of the measured")
    right.set_ylim(0, 1.1)
    return _files(name, figure)


def draw_paces(
    name: str, paces: Mapping[tuple[int, str], StrategyThroughput], batch: int
) -> dict[str, bytes]:
    """Plot the simulated throughput and step times of strategies; return image files by name.

    `batch` is the number of images of a worker's step.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for strategy in dict.fromkeys(strategy for _, strategy in paces):
        some = {workers: each for (workers, other), each in paces.items() if other == strategy}
        rates = [each.batches_per_second * batch for each in some.values()]
        left.plot([*some], rates, marker="o", markersize=4, label=strategy)
        low, middle, high = (
            [1000 * each.quantile(share) for each in some.values()] for share in (0.1, 0.5, 0.9)
        )
        (line,) = right.plot([*some], middle, marker="o", markersize=4, label=strategy)
        right.fill_between([*some], low, high, color=line.get_color(), alpha=0.15)
    _axes(left, "workers", "images/s in virtual time")
    left.set_yscale("log")
    _axes(right, "workers", "ms of a step: median, p10 to p90")
    right.set_yscale("log")
    figure.suptitle(name)
    return _files(name, figure)


def draw_arrivals(
    points: PublishedPoints, found: Sequence[TargetPlan], examples: int
) -> dict[str, bytes]:
    """Plot steps to a target by minibatch, and hours by GPUs; return image files by file name."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    pruned = points.pruned
    low, high = pruned[0], pruned[-1]
    ratio = high.batch_size / low.batch_size
    sizes = [round(low.batch_size * ratio ** (i / 200)) for i in range(201)]
    line = [(size, at) for size in sizes if (at := reference_at(pruned, size))]
    left.plot([size for size, _ in line], [steps_to(at, examples) for _, at in line], color="C0")
    begin = steps_to(low, examples)
    ends = [low.batch_size, high.batch_size]
    left.plot(ends, [begin, begin / ratio], ":", color="grey", label="twice as large, half of them")
    kept = [reference.batch_size for reference in pruned]
    for label, fill, counted in (
        ("published, and counted on", "full", True),
        ("published, slower than the line", "none", False),
    ):
        some = [each.reference for each in points.judged if (each.batch_size in kept) is counted]
        left.plot(
            [each.batch_size for each in some],
            [steps_to(each, examples) for each in some],
            "o",
            color="C0",
            fillstyle=fill,
            label=label,
        )
    hearsay = [each for each in points.points if each.label in DISPLAYED_LABELS]
    if hearsay:
        left.plot(
            [each.batch_size for each in hearsay],
            [median(each.epochs) * examples / each.batch_size for each in hearsay],
            "x",
            color="C1",
            label="expected, without runs",
        )
    _axes(left, "minibatch", f"steps to {100 - points.target:g} %")
    left.set_yscale("log")
    counts = sorted({each.step.gpus for each in found})
    soonest = [fastest([each for each in found if each.step.gpus == count]) for count in counts]
    hours = [each.hours for each in soonest]
    right.plot(counts, hours, marker="o", markersize=4, label="best minibatch, modelled")
    _axes(right, "GPUs", "hours of the training steps")
    right.set_yscale("log")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    figure.suptitle(points.title)
    return _files(points.name, figure)


def _files(name: str, figure: Figure) -> dict[str, bytes]:
    png, svg = BytesIO(), BytesIO()
    # The SVG keeps its text as text, and the salt makes the file reproducible.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(png, format="png", dpi=130, metadata={"Software": None})
        figure.savefig(svg, format="svg", dpi=130, metadata={"Date": None})
    return {"plan.png": png.getvalue(), "plan.svg": svg.getvalue()}


def _axes(axes: Axes, of: str, what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda count, _: f"{count:g}")
    axes.set_xlabel(of)
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.legend()
