"""The table and the figure of the steps to 10 % error that arms.py has trained: `python steps.py`.

An arm is through when its best lr lies between others and three seeds are trained at it; others are
in neither.
"""

import math
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
from arms import METHODS, best, grid
from elbow import errors

from lsgd.report.drawing import BLUE
from lsgd.tables import markdown

HERE = Path(__file__).parent
METHOD = "steps to 10 %"
EXAMPLES = 60000


def through() -> dict[int, list[float]]:
    """The steps of the seeds of each arm that is through, by its minibatch."""
    found = {32 * w: errors(METHOD, w) for w in METHODS[METHOD].workers}
    return {size: steps for size, steps in found.items() if steps}


def tried() -> list[list[str]]:
    """For each minibatch the steps of seed 0 at each lr that was tried."""
    grids = {32 * w: grid(METHOD, w) for w in METHODS[METHOD].workers}
    return [
        [str(size), ", ".join(f"{lr:g}: {shown(steps)}" for lr, steps in sorted(found.items()))]
        for size, found in grids.items()
    ]


def shown(steps: float) -> str:
    """A number of steps; 40 epochs may not be enough."""
    return f"{steps:,.0f}" if math.isfinite(steps) else "not in 40 epochs"


def rows(arms: dict[int, list[float]]) -> list[list[str]]:
    """The cells of each arm; its median is compared with that of the arm before."""
    cells, before = [], None
    for size, steps in arms.items():
        median = statistics.median(steps)
        lr = best(grid(METHOD, size // 32))
        against = "–"
        if before and math.isfinite(median):
            against = f"{before[1] / median:.2f} of {size / before[0]:.0f}"
        each = ", ".join(map(shown, steps))
        epochs = f"{median * size / EXAMPLES:.1f}"
        cells.append([str(size), f"{lr:g}", each, shown(median), epochs, against])
        before = size, median
    return cells


def draw(arms: dict[int, list[float]]) -> None:
    """The steps against the minibatch, beside those of perfect scaling."""
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    medians = {size: statistics.median(steps) for size, steps in arms.items()}
    first = min(medians)
    axes.plot(
        [*medians], [medians[first] * first / size for size in medians], "--", color="grey", lw=1,
        label="perfect scaling: as many epochs as the smallest",
    )  # fmt: skip
    axes.plot(
        [*medians], [*medians.values()], color=BLUE, lw=1, label="three seeds and their median"
    )
    for size, steps in arms.items():
        axes.plot([size] * len(steps), steps, "o", color=BLUE, ms=5, mfc="none")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([*medians], [str(size) for size in medians])
    axes.set_xlabel("minibatch, images")
    axes.set_ylabel("steps to 10 % top-1 error")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "steps_to_10.png", dpi=150)


if __name__ == "__main__":
    print(markdown(["minibatch", "lr of 64 images: steps of seed 0"], tried()), end="\n\n")
    head = ["minibatch", "lr of 64 images", "steps, seeds 0 to 2", "median", "epochs", "fewer by"]
    print(markdown(head, rows(through())))
    draw(through())
