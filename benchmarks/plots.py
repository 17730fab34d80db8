"""The plots of the benchmarks' reports, each as a PNG and an SVG file by name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        plot.set_ylabel("batches/s")
        _finish(plot, title, "workers")
    return files(figure, "live")


def fold_curves(
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
        _finish(plot, title, "trees in a batch")
    return files(figure, "fold")


@dataclass(frozen=True)
class StrategyBar:
    """The label, the system and the values of a strategy's bars."""

    label: str
    system: str
    figures: tuple[Estimate, ...]
    """One value for each plot."""


def strategy_bars(titles: Sequence[str], cells: Sequence[StrategyBar]) -> dict[str, bytes]:
    """Return strategies.svg and .png: a plot for each title, with a bar for each strategy.

    Its colour is that of the strategy's system.
    """
    figure = Figure(figsize=(5.5 * len(titles), 0.4 * len(cells) + 1.2), layout="constrained")
    plots = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for number, (title, plot) in enumerate(zip(titles, plots, strict=True)):
        for system in dict.fromkeys(cell.system for cell in cells):
            values = {
                place: cell.figures[number]
                for place, cell in enumerate(cells)
                if cell.system == system
            }
            medians = [value.median for value in values.values()]
            plot.barh([*values], medians, 0.8, xerr=error_bars(values.values()), label=system)
        plot.set_title(title)
        plot.grid(axis="x", alpha=0.3)
    plots[0].set_yticks(range(len(cells)), [cell.label for cell in cells])
    plots[0].invert_yaxis()
    plots[0].legend()
    return files(figure, "strategies")


def padding_bars(
    speeds: Mapping[tuple[int, str, str], Estimate], paddings: Sequence[str]
) -> dict[str, bytes]:
    """Return padding.svg and .png from the words per CPU second by batch, network and padding.

    There is a plot for each batch size, a group of bars for each padding and a colour for each
    network.
    """
    batches = list(dict.fromkeys(batch for batch, _, _ in speeds))
    systems = list(dict.fromkeys(system for _, system, _ in speeds))
    figure = Figure(figsize=(5.5 * len(batches), 4.2), layout="constrained")
    plots = figure.subplots(1, len(batches), sharey=True, squeeze=False)[0]
    width = 0.8 / len(systems)
    for batch, plot in zip(batches, plots, strict=True):
        for number, system in enumerate(systems):
            bars = {
                group + number * width: _thousands(speeds[batch, system, padding])
                for group, padding in enumerate(paddings)
                if (batch, system, padding) in speeds
            }
            heights = [each.median for each in bars.values()]
            plot.bar([*bars], heights, width, yerr=error_bars(bars.values()), label=system)
        plot.set_xticks([group + 0.4 - width / 2 for group in range(len(paddings))], paddings)
        plot.set_title(f"{batch} sentences a step")
        plot.grid(axis="y", alpha=0.3)
    plots[0].set_ylabel("1000 words per CPU second")
    plots[0].legend()
    return files(figure, "padding")


def _thousands(speed: Estimate) -> Estimate:
    return Estimate(speed.median / 1000, speed.low / 1000, speed.high / 1000)


def _finish(plot: Any, title: str, x: str) -> None:
    """Give a plot its title, logarithmic axes with a label of x, a grid and a legend."""
    plot.set_xscale("log", base=2)
    plot.set_yscale("log", base=2)
    plot.xaxis.set_major_formatter("{x:.0f}")
    plot.yaxis.set_major_formatter("{x:g}")
    plot.set_xlabel(x)
    plot.set_title(title, fontsize="medium")
    plot.grid(alpha=0.3)
    plot.legend()
