"""Plots of time ratios over the batch size in trees."""

from collections.abc import Collection, Mapping

from matplotlib.figure import Figure

from benchmarks.figure import error_bars, files
from lsgd.bench.timing import Estimate


def curves(
    plots: Mapping[str, Mapping[str, Mapping[int, Estimate]]], *, dashed: Collection[str]
) -> dict[str, bytes]:
    """Return fold.svg and fold.png with a plot for each title, from ratios by curve and batch size.

    The `dashed` curves are from other sources and have no intervals.
    """
    figure = Figure(figsize=(6.5 * len(plots), 4.6), layout="constrained")
    for plot, (title, lines) in zip(
        figure.subplots(1, len(plots), squeeze=False)[0], plots.items(), strict=True
    ):
        for name, values in lines.items():
            batches = sorted(values)
            medians = [values[batch].median for batch in batches]
            style = {"color": "0.3" if name == next(iter(lines)) else "0.6", "linestyle": "--"}
            plot.errorbar(
                batches,
                medians,
                None if name in dashed else error_bars(values[batch] for batch in batches),
                marker="o",
                markersize=3,
                label=name,
                **(style if name in dashed else {}),
            )
        plot.axhline(1, color="0.8", linewidth=1, zorder=0)
        plot.set_xscale("log", base=2)
        plot.set_yscale("log", base=2)
        plot.xaxis.set_major_formatter("{x:.0f}")
        plot.yaxis.set_major_formatter("{x:g}")
        plot.set_xlabel("trees in a batch")
        plot.set_title(title, fontsize="medium")
        plot.grid(alpha=0.3)
        plot.legend()
    return files(figure, "fold")
