"""Bar plots of the strategies of several systems."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from benchmarks.figure import error_bars, files
from lsgd.bench.timing import Estimate


@dataclass(frozen=True)
class StrategyBar:
    """The label, the system and the values of a strategy's bars."""

    label: str
    system: str
    figures: tuple[Estimate, ...]
    """One value for each plot."""


def bars(titles: Sequence[str], cells: Sequence[StrategyBar]) -> dict[str, bytes]:
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
