"""Strategies of several systems as bars."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from lsgd.bench.figure import files
from lsgd.bench.timing import Estimate


@dataclass(frozen=True)
class Bar:
    """What is drawn of a strategy."""

    label: str
    system: str
    figures: tuple[Estimate, ...]
    """A figure for each plot."""


def bars(titles: Sequence[str], cells: Sequence[Bar]) -> dict[str, bytes]:
    """The content of strategies.svg and .png: a plot for each title with a bar for each cell, in
    the colour of its system."""
    figure = Figure(figsize=(5.5 * len(titles), 0.4 * len(cells) + 1.2), layout="constrained")
    plots = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
    for number, (title, plot) in enumerate(zip(titles, plots, strict=True)):
        for system in dict.fromkeys(cell.system for cell in cells):
            values = {
                place: cell.figures[number]
                for place, cell in enumerate(cells)
                if cell.system == system
            }
            spread = [
                [value.median - value.low for value in values.values()],
                [value.high - value.median for value in values.values()],
            ]
            medians = [value.median for value in values.values()]
            plot.barh([*values], medians, 0.8, xerr=spread, label=system)
        plot.set_title(title)
        plot.grid(axis="x", alpha=0.3)
    plots[0].set_yticks(range(len(cells)), [cell.label for cell in cells])
    plots[0].invert_yaxis()
    plots[0].legend()
    return files(figure, "strategies")
