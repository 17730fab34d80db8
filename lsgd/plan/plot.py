"""A plan as two curves: hours and efficiency over the number of GPUs."""

from collections.abc import Sequence
from io import BytesIO

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsgd.plan.table import PlannedRun

FORMATS = ("png", "svg")


def draw(
    name: str, fixed: Sequence[PlannedRun], growing: Sequence[PlannedRun], *, workers: int
) -> dict[str, bytes]:
    """The content of the plot's files, by file name."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    labels = {"one worker on each GPU": growing, f"{name}, {workers} workers": fixed}
    for (label, rows), marker in zip(labels.items(), "so", strict=True):
        timed = [row for row in rows if row.hours is not None]
        left.plot(
            [row.step.gpus for row in timed],
            [row.hours or 0.0 for row in timed],
            marker=marker,
            markersize=4,
            label=label,
        )
        right.plot(
            [row.step.gpus for row in rows],
            [row.efficiency for row in rows],
            marker=marker,
            markersize=4,
            label=label,
        )
    _axes(left, "hours of the training steps")
    left.set_yscale("log")
    left.yaxis.set_major_formatter(lambda hours, _: f"{hours:g}")
    _axes(right, "images/s and GPU, share of the measured")
    right.set_ylim(0, 1.1)
    # Text stays text, and the same plan makes the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        return {f"plan.{kind}": _saved(figure, kind) for kind in FORMATS}


def _axes(axes: Axes, what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda gpus, _: f"{gpus:g}")
    axes.set_xlabel("GPUs")
    axes.set_ylabel(what)
    axes.grid(alpha=0.3)
    axes.legend()


def _saved(figure: Figure, kind: str) -> bytes:
    file = BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(file, format=kind, dpi=130, metadata=metadata)
    return file.getvalue()
