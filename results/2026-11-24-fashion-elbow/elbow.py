"""The tables and the figure of what arms.py has trained: `python elbow.py`.

An arm is through when its best lr lies between others and three seeds are trained at it. Others are
in no table and not in the figure.
"""

import statistics
from pathlib import Path

import matplotlib.pyplot as plt
from arms import ELBOW, METHODS, SEARCH, SEEDS, best, find, grid, number

from lsgd.report.drawing import BLUE, RED
from lsgd.report.welch import sample_stats, welch_difference
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
SHOWN = {"drops": (BLUE, "o"), "polynomial": (RED, "s"), "LARS": ("black", "^")}
DRAWN_TO = 30.0
"""The error, in percent, above which a point lies on the upper edge."""


def errors(method: str, workers: int) -> list[float] | None:
    """Those of the three seeds at the best lr; None if the arm is not through."""
    lr = best(grid(method, workers))
    if lr is None:
        return None
    runs = [find(method, workers, lr, seed) for seed in (SEARCH, *SEEDS)]
    return [number(method, run) for run in runs if run] if all(runs) else None


def above(found: list[float], base: list[float]) -> str:
    """By how much the mean of some errors is above that of others, with its interval of 95 %."""
    gap = welch_difference(sample_stats(found), sample_stats(base))
    return f"{gap.mean:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"


def row(method: str, workers: int, base: list[float] | None) -> list[str] | None:
    """The cells of an arm; its difference is to the smallest minibatch of its method."""
    found = errors(method, workers)
    if found is None:
        return None
    against = above(found, base) if base and base != found else "–"
    lr = best(grid(method, workers))
    each = ", ".join(f"{value:.2f}" for value in found)
    return [method, str(32 * workers), f"{lr:g}", each, f"{sample_stats(found).mean:.2f}", against]


def draw() -> None:
    """The error of each method against the minibatch."""
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for method, (colour, marker) in SHOWN.items():
        through = [(w, errors(method, w)) for w in METHODS[method].workers]
        # Not means: a seed that does not train would be all that is seen.
        medians = [(w, statistics.median(found)) for w, found in through if found]
        axes.plot(
            [32 * w for w, _ in medians], [min(y, DRAWN_TO) for _, y in medians],
            color=colour, lw=1, label=f"{method}, three seeds and their median",
        )  # fmt: skip
        for w, found in through:
            each = [min(y, DRAWN_TO) for y in found or []]
            axes.plot([32 * w] * len(each), each, marker, color=colour, ms=5, mfc="none")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([64, 512, 1024, 2048, 4096], ["64", "512", "1024", "2048", "4096"])
    axes.set_yticks([10, 12, 15, 20, 30], ["10", "12", "15", "20", "30 or more"])
    axes.minorticks_off()
    axes.set_xlabel("minibatch, images")
    axes.set_ylabel("top-1 error, %")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "elbow.png", dpi=150)


def main() -> None:
    """Print and draw what there is."""
    table = []
    for method in SHOWN:
        smallest, *_ = METHODS[method].workers
        base = errors(method, smallest)
        table += [row(method, w, base) for w in METHODS[method].workers]
    head = ["method", "minibatch", "lr of 64 images", "error, %, seeds 0 to 2", "mean", "to 64"]
    print(markdown_table(head, [cells for cells in table if cells]))
    pairs = [("polynomial", "drops"), ("LARS", "drops"), ("LARS", "polynomial")]
    print()
    print(
        markdown_table(
            ["minibatch", *(f"{one} to {other}" for one, other in pairs)],
            [
                [str(32 * w), *(above(a, b) if a and b else "–" for a, b in both)]
                for w in ELBOW
                if (both := [(errors(one, w), errors(other, w)) for one, other in pairs])
            ],
        )
    )
    draw()


if __name__ == "__main__":
    main()
