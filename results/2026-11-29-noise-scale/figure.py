"""What predicts the elbow: the gradient noise scale or the steps per epoch, on three data sets.

python figure.py           draws elbow.svg beside this file and prints the tables
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

from lsgd.report.drawing import BLUE, GREY, RED
from lsgd.report.run_archive import FILE, unpack
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
BAR = {"lw": 7, "solid_capstyle": "butt"}


@dataclass(frozen=True)
class DataSet:
    """A ladder of minibatches, and the runs on it that measured the noise scale."""

    name: str
    ladder: str
    noise: str
    runs: str
    images: int
    last_epoch: int
    """The last epoch before the lr drops for the first time."""
    good: int
    """The largest minibatch shown to be as good as the reference, by the claim's margin."""
    worse: int | None
    """The smallest minibatch shown to be worse by more than the margin; None: none is."""
    largest: int

    @property
    def epochs(self) -> list[tuple[int, float, list[float | None], float]]:
        """Of each epoch its number, lr, the noise scale by seed, and the one of all runs."""
        files = sorted(unpack(HERE.parent / self.noise / FILE).glob(f"{self.runs}/metrics.jsonl"))
        rows_of_runs = [map(json.loads, file.read_text().splitlines()) for file in files]
        runs = [[row for row in rows if row["kind"] == "epoch"] for rows in rows_of_runs]
        found = []
        for rows in zip(*runs, strict=True):
            square = sum(row["train_gradient_square"] for row in rows)
            variance = sum(row["train_gradient_variance"] for row in rows)
            each = [row["train_noise_scale"] for row in rows]
            scale = variance / square if square > 0 else math.nan
            found.append((rows[0]["epoch"], rows[0]["lr"], each, scale))
        return found


SETS = [
    DataSet("digits", "2026-11-29-digits-ladder", "2026-11-29-digits-ladder", "digits-bs64-seed*",
            1442, 10, 256, 512, 1024),
    DataSet("Fashion-MNIST", "2026-11-29-fashion-ladder", "2026-11-29-fashion-ladder",
            "fashion_ladder_bs64-seed*", 60000, 10, 512, 2048, 2048),
    DataSet("CIFAR-10", "2026-11-28-cifar10-ladder", "2026-11-29-noise-scale",
            "cifar10_ladder_bs64-seed*", 50000, 17, 256, None, 1024),
]  # fmt: skip


def main() -> None:
    """Draw and print all."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3), layout="constrained", sharey=True)
    rows = []
    for place, data in enumerate(SETS):
        before = [each for each in data.epochs if each[0] <= data.last_epoch]
        first, last = before[0][3], before[-1][3]
        end = data.worse or data.largest
        for axes, of in ((left, float), (right, lambda images, n=data.images: n // images)):
            axes.plot([of(data.good), of(end)], [place + 0.12] * 2, color=BLUE, **BAR)
            if data.worse is None:
                axes.plot(of(end), place + 0.12, ">" if axes is left else "<", color=BLUE, ms=11)
        left.plot([first, last], [place - 0.16] * 2, color=RED, lw=2)
        left.plot([last], [place - 0.16], "o", color=RED, ms=6)
        steps = [str(data.images // data.good), str(data.images // end)]
        rows.append([
            data.name, f"{data.good} to {end}" if data.worse else f"{data.good} to above {end}",
            f"{first:,.0f} to {last:,.0f}",
            " to ".join(steps) if data.worse else f"{steps[0]} to below {steps[1]}",
        ])  # fmt: skip
    right.plot([156, 78], [len(SETS) + 0.12] * 2, color=GREY, **BAR)
    left.set_yticks(
        range(len(SETS) + 1), [*(data.name for data in SETS), "the paper,\nImageNet"]
    )  # fmt: skip
    left.text(512, len(SETS) + 0.05, "8k to 16k images,\nnoise scale not measured", ha="center",
              va="center", color=GREY, fontsize=8)  # fmt: skip
    left.set_ylim(-0.6, len(SETS) + 0.6)
    left.set_xscale("log", base=2)
    left.set_xlim(96, 2700)
    left.set_xticks([128, 256, 512, 1024, 2048], ["128", "256", "512", "1024", "2048"])
    left.set_xlabel("images per step: elbow (blue), noise scale (red)")
    right.set_xscale("log")
    right.set_xlim(400, 1)
    right.set_xticks([200, 100, 50, 20, 10, 5, 2], ["200", "100", "50", "20", "10", "5", "2"])
    right.minorticks_off()
    right.set_xlabel("steps per epoch: elbow")
    for axes in (left, right):
        axes.grid(axis="x", color="#00000018")
        axes.spines[["top", "right"]].set_visible(False)
    plt.rcParams["svg.hashsalt"] = "lsgd"
    figure.savefig(HERE / "elbow.svg", metadata={"Date": None})
    columns = ["data set", "elbow, images", "noise scale", "elbow, steps per epoch"]
    print(markdown_table(columns, rows))
    for data in SETS:
        table = [
            [str(number), f"{lr:.3g}", *(f"{x:,.0f}" if x else "–" for x in [*each, scale])]
            for number, lr, each, scale in data.epochs
            if number <= data.last_epoch + 1
        ]
        seeds = [f"seed {seed}" for seed in range(len(table[0]) - 3)]
        print(f"\n{data.name}\n")
        print(markdown_table(["epoch", "lr at its end", *seeds, "all"], table))


if __name__ == "__main__":
    main()
