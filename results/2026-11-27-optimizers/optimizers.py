"""The table of the searches, and the figure of the study: `python optimizers.py`.

They are made of searches/ and of summary.json beside this file.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from lsgd.report.drawing import BLUE, RED
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
SIZES = {"bs128": 128, "bs512": 512, "bs2k": 2048, "bs8k": 8192}
SHOWN = {"sgd": ("SGD", BLUE, "o"), "lars": ("LARS", RED, "s"), "lamb": ("LAMB", "black", "^")}
LR, MOMENTUM = "schedule.reference_lr", "optim.momentum"
DRAWN_TO = 40.0
"""The error, in percent, above which a point lies on the upper edge."""


def searched(name: str) -> list[str]:
    """The cells of a search: the least error at each lr, and the best trial.

    A star marks a best lr at an end of the space.
    """
    points = json.loads((HERE / "searches" / name / "points.json").read_text())["points"]
    # A trial that diverged or failed has a value too, that of guessing, or none.
    tried = [point for point in points if point["value"] is not None]
    lrs = sorted({point["values"][LR] for point in points})
    least = [min(p["value"] for p in tried if p["values"][LR] == lr) for lr in lrs]
    best = min(tried, key=lambda point: point["value"])
    lr, momentum = best["values"][LR], best["values"][MOMENTUM]
    star = "*" if lr in (lrs[0], lrs[-1]) else ""
    return [*(f"{value:.2f}" for value in least), f"{lr:g}{star}, {momentum:g}"]


def draw() -> None:
    """The error of each optimizer against the minibatch: every seed, and a line through means."""
    rows = {
        row["recipe"]: row for row in json.loads((HERE / "summary.json").read_text())["recipes"]
    }
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for shift, (optimizer, (label, colour, marker)) in enumerate(SHOWN.items()):
        means = []
        for size, images in SIZES.items():
            row = rows[f"fashion_optim_{optimizer}_{size}"]
            x = images * 1.04 ** (shift - 1)  # side by side, so that all seeds are seen
            means.append((x, min(row["mean"], DRAWN_TO)))
            each = [min(error, DRAWN_TO) for error in row["errors"].values()]
            axes.plot([x] * len(each), each, marker, color=colour, ms=5, mfc="none")
        axes.plot(*zip(*means, strict=True), color=colour, lw=1, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([*SIZES.values()], [*map(str, SIZES.values())])
    axes.set_yticks([10, 12, 15, 20, 30, 40], ["10", "12", "15", "20", "30", "40 or more"])
    axes.minorticks_off()
    axes.set_xlabel("minibatch, images")
    axes.set_ylabel("top-1 error, %")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "optimizers.svg")


def main() -> None:
    """Print the tables and draw the figure."""
    for optimizer, (label, *_) in SHOWN.items():
        name = f"fashion_optim_{optimizer}"
        space = json.loads((HERE / "searches" / f"{name}_bs128/search.json").read_text())["space"]
        low, count = space[LR]["from"], space[LR]["steps"]
        head = [f"{label}, minibatch", *(f"lr {low * 2**i:g}" for i in range(count)), "best"]
        rows = [[str(images), *searched(f"{name}_{size}")] for size, images in SIZES.items()]
        print(markdown_table(head, rows), end="\n\n")
    draw()


if __name__ == "__main__":
    main()
