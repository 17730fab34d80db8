"""Plots of batches/s on real processes and in virtual time over the number of workers."""

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from benchmarks.figure import error_bars, files
from lsgd.bench.timing import Estimate


@dataclass(frozen=True)
class SpeedCurves:
    """The batches/s of a topology by the number of workers."""

    real: dict[int, Estimate]
    virtual: dict[int, float]
    limited: set[int]
    """The numbers of workers at which this machine limits the speed."""


def speed_plots(plots: Mapping[str, Mapping[str, SpeedCurves]]) -> dict[str, bytes]:
    """Return live.svg and live.png with a plot for each title, and curves for each topology."""
    figure = Figure(figsize=(6 * len(plots), 4.6), layout="constrained")
    figure.suptitle("computation is a sleep, the network is emulated", fontsize="medium")
    for plot, (title, topologies) in zip(
        figure.subplots(1, len(plots), squeeze=False)[0], plots.items(), strict=True
    ):
        for number, (topology, curves) in enumerate(topologies.items()):
            color = f"C{number}"
            plot.plot(
                [*curves.virtual],
                [*curves.virtual.values()],
                "--",
                color=color,
                label=f"{topology}, virtual time",
            )
            for limited in (False, True):
                values = {
                    workers: value
                    for workers, value in curves.real.items()
                    if (workers in curves.limited) == limited
                }
                if not values:
                    continue
                plot.errorbar(
                    [*values],
                    [value.median for value in values.values()],
                    error_bars(values.values()),
                    fmt="o",
                    color=color,
                    markerfacecolor="white" if limited else color,
                    label=f"{topology}, real"
                    + (", limited by this machine" if limited else " processes"),
                )
        plot.set_xscale("log", base=2)
        plot.set_yscale("log", base=2)
        plot.xaxis.set_major_formatter("{x:.0f}")
        plot.yaxis.set_major_formatter("{x:g}")
        plot.set_xlabel("workers")
        plot.set_ylabel("batches/s")
        plot.set_title(title, fontsize="medium")
        plot.grid(alpha=0.3)
        plot.legend()
    return files(figure, "live")
