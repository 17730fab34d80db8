"""Bar plot of the cost of padding."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.figure import files
from lsgd.bench.timing import Estimate


def bars(
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
                group + number * width: speeds[batch, system, padding]
                for group, padding in enumerate(paddings)
                if (batch, system, padding) in speeds
            }
            heights = [each.median / 1000 for each in bars.values()]
            spread = [
                [(each.median - each.low) / 1000 for each in bars.values()],
                [(each.high - each.median) / 1000 for each in bars.values()],
            ]
            plot.bar([*bars], heights, width, yerr=spread, label=system)
        plot.set_xticks([group + 0.4 - width / 2 for group in range(len(paddings))], paddings)
        plot.set_title(f"{batch} sentences a step")
        plot.grid(axis="y", alpha=0.3)
    plots[0].set_ylabel("1000 words per CPU second")
    plots[0].legend()
    return files(figure, "padding")
