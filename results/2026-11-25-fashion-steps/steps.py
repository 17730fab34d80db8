"""The tables and the figure of the steps to an error, of what arms.py has trained.

PYTHONPATH=../2026-11-24-fashion-elbow python steps.py
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
from arms import METHODS, SEARCH, SEEDS, find, grid, number

from lsgd.report.drawing import BLUE, RED
from lsgd.run.read import Run
from lsgd.run.rows import finite_number as value
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
METHOD = "steps to 10 %"
EXAMPLES = 60000
TARGETS = {12.0: RED, 11.0: BLUE, 10.0: "black"}
"""Errors in percent. The lr was searched for the last, where a run ended, or after 40 epochs."""


def steps_to(run: Run, target: float) -> float:
    """The steps until the first epoch after which the error was at most this; infinite if never."""
    for row in run.epochs.values():
        error = value(row, run.metric.key)
        if error is not None and error <= target:
            return value(row, "step") or math.inf
    return math.inf


def shown(steps: float) -> str:
    """A number of steps; 40 epochs may not be enough."""
    return f"{steps:,.0f}" if math.isfinite(steps) else "never"


def tried(workers: int) -> dict[float, Run]:
    """The runs of seed 0 by their lr."""
    found = {lr: find(METHOD, workers, lr, SEARCH) for lr in grid(METHOD, workers)}
    return {lr: run for lr, run in found.items() if run}


def fewest(workers: int, target: float) -> float:
    """The steps of seed 0 to an error at the best of the lrs."""
    return min(steps_to(run, target) for run in tried(workers).values())


def draw() -> None:
    """The steps against the minibatch, beside those of perfect scaling."""
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    sizes = [32 * workers for workers in METHODS[METHOD].workers]
    for target, colour in TARGETS.items():
        steps = [fewest(size // 32, target) for size in sizes]
        axes.plot(sizes, steps, "o-", color=colour, lw=1, mfc="none", label=f"to {target:g} %")
        perfect = [steps[0] * sizes[0] / size for size in sizes]
        axes.plot(sizes, perfect, ":", color=colour, lw=0.8)
    axes.plot([], [], ":", color="grey", label="as many epochs as with 32 images")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("minibatch, images")
    axes.set_ylabel("steps, seed 0 at its best lr")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "steps.png", dpi=150)


def main() -> None:
    """Print and draw what there is."""
    arms = METHODS[METHOD].workers
    lrs = sorted({lr for workers in arms for lr in tried(workers)})
    rows = []
    for workers in arms:
        found = tried(workers)
        rows.append(
            [str(32 * workers)]
            + [shown(number(METHOD, found[lr])) if lr in found else "" for lr in lrs]
        )
    print(markdown_table(["minibatch", *(f"lr {lr:g}" for lr in lrs)], rows), end="\n\n")
    rows = []
    for workers in arms:
        for lr in lrs:
            runs = [find(METHOD, workers, lr, seed) for seed in (SEARCH, *SEEDS)]
            if all(runs):
                each = ", ".join(shown(number(METHOD, run)) for run in runs if run)
                rows.append([str(32 * workers), f"{lr:g}", each])
    print(
        markdown_table(["minibatch", "lr of 64 images", "steps to 10 %, seeds 0 to 2"], rows),
        end="\n\n",
    )
    rows = []
    for workers in arms:
        cells = [str(32 * workers)]
        for target in TARGETS:
            steps = fewest(workers, target)
            epochs = steps * 32 * workers / EXAMPLES
            cells += [shown(steps), f"{epochs:.0f}" if math.isfinite(epochs) else "–"]
        rows.append(cells)
    head = [text for target in TARGETS for text in (f"steps to {target:g} %", "epochs")]
    print(markdown_table(["minibatch", *head], rows))
    draw()


if __name__ == "__main__":
    main()
