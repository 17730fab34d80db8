"""The noise scale of runs at 64 images, by epoch, beside the error of larger minibatches.

python figure.py           draws noise.png beside this file and prints the table
"""

import json
import math
from pathlib import Path

import matplotlib.pyplot as plt

from lsgd.report.drawing import BLUE, RED
from lsgd.report.run_archive import FILE, unpack
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
LADDER = HERE.parent / "2026-11-21-fashion-figure1" / "summary.json"
GOOD, WORSE = 256, 2048
"""The largest minibatch shown to be as good as 64, and the first shown to be worse (figure 1)."""


def epochs(run: Path) -> list[dict[str, float]]:
    """The rows of the epochs of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "epoch"]


def scale(rows: list[dict[str, float]]) -> float:
    """The noise scale of several runs' epoch: a quotient of means, without bias in both."""
    square = sum(row["train_gradient_square"] for row in rows)
    variance = sum(row["train_gradient_variance"] for row in rows)
    return variance / square if square > 0 else math.nan


def main() -> None:
    """Draw and print all."""
    runs = [epochs(run) for run in sorted(unpack(HERE / FILE).glob("fashion_bs64-seed*"))]
    lrs = [0.1] * 5 + [0.01] * 2 + [0.001, 0.0001]
    ladder = json.loads(LADDER.read_text())["recipes"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", sharey=True)
    table = []
    for number, rows in enumerate(zip(*runs, strict=True)):
        each = [row["train_noise_scale"] for row in rows]
        # None where the estimate of the squared gradient, which is unbiased, is not above 0.
        known = [x for x in each if x is not None]
        left.plot([number + 1] * len(known), known, "o", color=BLUE, ms=4, mfc="none")
        seeds = ["–" if x is None else f"{x:,.0f}" for x in each]
        cells = [str(number + 1), f"{lrs[number]:g}", ", ".join(seeds)]
        table.append([*cells, f"{scale(list(rows)):,.0f}"])
    means = [scale(list(rows)) for rows in zip(*runs, strict=True)]
    left.plot(range(1, len(means) + 1), means, color=BLUE, lw=1)
    left.set_xlabel("epoch of a run at 64 images")
    left.set_ylabel("images")
    left.set_title("gradient noise scale")
    sizes = [row["batch_size"] for row in ladder]
    right.errorbar(
        [row["mean"] for row in ladder], sizes, xerr=[row["std"] for row in ladder],
        color=RED, marker="o", ms=4, lw=1, capsize=2,
    )  # fmt: skip
    right.set_xscale("log")
    right.set_xticks([8, 10, 20, 50, 90], ["8", "10", "20", "50", "90"])
    right.minorticks_off()
    right.set_xlabel("top-1 error of that minibatch, %")
    right.set_title("figure 1: the error by minibatch")
    for axes in (left, right):
        axes.set_yscale("log", base=2)
        axes.axhspan(GOOD, WORSE, color="#00000012", lw=0)
    left.set_yticks(sizes, [f"{size:,}" for size in sizes])
    figure.savefig(HERE / "noise.png", dpi=150)
    print(markdown_table(["epoch", "lr at its end", "noise scale, by seed", "of all"], table))


if __name__ == "__main__":
    main()
