"""Sets virtual time beside what TensorFlow's paper reports of its parameter servers.

    python results/2026-11-22-osdi16/osdi16.py

prints the tables of the README beside it and draws figure.png and figure.svg there, in about 20 s.
Abadi et al. 2016, "TensorFlow: a system for large-scale machine learning" (OSDI). The cluster is
conf/cluster/osdi16.yaml, for all of the points.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

from lsgd.paths import conf_dir
from lsgd.plan.throughput import StrategyThroughput, simulate_throughput
from lsgd.recipe.strategies import StrategySettings, VirtualCluster
from lsgd.tables import markdown_table

WORKERS = (1, 25, 50, 100)
NULL_STEPS = {"scalar": 1, "100 MB": 25_000_000, "1 GB": 250_000_000}
"""The elements of float32 that a step without computation gets and gives back; `scalar` is one on
each server."""
PUBLISHED_NULL = {
    ("scalar", 1): 0.0018,
    ("scalar", 100): 0.0088,
    ("100 MB", 1): 0.147,
    ("100 MB", 100): 0.613,
    ("1 GB", 1): 1.010,
    ("1 GB", 100): 7.160,
}
"""The median seconds of such steps, by what they move and the number of workers."""
NULL_SECONDS = 2e-4
"""What a step that computes nothing is taken to compute."""
INCEPTION = 23_834_568
"""The elements of Inception-v3 without its auxiliary classifier, spread evenly over 17 servers."""
IMAGES = 32
"""The images of a worker's step: assumed."""
PUBLISHED_IMAGES = {("sync", 200): 2300.0}
"""Images per second, by strategy and number of workers."""
READ_IMAGES = {("sync", 25): 350.0, ("async", 25): 400.0, ("async", 200): 2850.0}
"""Those that others have read off the paper's figure, to 10 % or so: shown, not judged."""
MOST_BACKUP = 6
UPDATES = 150


@cache
def cluster() -> VirtualCluster:
    """The cluster of the paper, as conf/ has it."""
    text = (conf_dir() / "cluster/osdi16.yaml").read_text(encoding="utf-8")
    return VirtualCluster(**yaml.safe_load(text))


@cache
def null_step(name: str, workers: int) -> StrategyThroughput:
    """A synchronous step on 16 servers that computes nothing."""
    evenly = [max(1, NULL_STEPS[name] // 16)] * 16
    idle = replace(cluster(), step=NULL_SECONDS, slow_share=0.0)
    return simulate_throughput(
        idle, StrategySettings("sync", servers=16), evenly, workers, steps=20
    )


@cache
def inception(name: str, workers: int, backup: int = 0, steps: int = 40) -> StrategyThroughput:
    """Training Inception-v3 with 17 servers."""
    settings = StrategySettings(name, backup=backup, servers=17)
    return simulate_throughput(cluster(), settings, [INCEPTION // 17] * 17, workers, steps=steps)


@dataclass(frozen=True)
class Backed:
    """What backup workers bring beside 50 others."""

    backup: int
    seconds: float
    """The median of a step."""
    normalised: float
    """t(0) / t(b) · 50 / (50 + b): the speed-up for what is paid."""


@cache
def backups() -> tuple[Backed, ...]:
    """From no backup worker to MOST_BACKUP."""
    seconds = [
        inception("backup", 50 + backup, backup, UPDATES).quantile(0.5)
        for backup in range(MOST_BACKUP + 1)
    ]
    return tuple(
        Backed(backup, time, seconds[0] / time * 50 / (50 + backup))
        for backup, time in enumerate(seconds)
    )


def null_table() -> str:
    """Steps without computation, in milliseconds."""
    rows = []
    for (name, workers), published in PUBLISHED_NULL.items():
        step = null_step(name, workers)
        low, middle, high = (f"{1000 * step.quantile(q):.4g}" for q in (0.1, 0.5, 0.9))
        off = f"{step.quantile(0.5) / published - 1:+.0%}"
        rows += [[f"{name}, {workers}", f"{1000 * published:.4g}", middle, low, high, off]]
    return markdown_table(["moved, workers", "the paper, ms", "median", "p10", "p90", "off"], rows)


def images_table() -> str:
    """Images per second of Inception-v3."""
    rows = []
    for (name, workers), published in sorted((PUBLISHED_IMAGES | READ_IMAGES).items()):
        speed = IMAGES * inception(name, workers).batches_per_second
        is_read = (name, workers) in READ_IMAGES
        source = "read off a figure" if is_read else "the paper's text"
        off = f"{speed / published - 1:+.1%}"
        rows += [[f"{name}, {workers}", f"{published:.0f}", f"{speed:.0f}", off, source]]
    return markdown_table(["strategy, workers", "published", "virtual time", "off", "source"], rows)


def backup_table() -> str:
    """Steps with backup workers."""
    published = {3: ("", "1.095"), 4: ("1.93", "")}
    rows = []
    for each in backups():
        ours = (f"{each.seconds:.3f}", f"{each.normalised:.3f}")
        rows += [[f"{each.backup}", *ours, *published.get(each.backup, ("", ""))]]
    head = ["backup workers", "step, s", "normalised", "the paper: step, s", "normalised"]
    return markdown_table(head, rows)


def draw(folder: Path) -> None:
    """The three tables as a picture."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for number, name in enumerate(NULL_STEPS):
        seconds = [1000 * null_step(name, workers).quantile(0.5) for workers in WORKERS]
        left.plot(WORKERS, seconds, f"C{number}-", label=name)
        points = [(w, 1000 * s) for (n, w), s in PUBLISHED_NULL.items() if n == name]
        left.plot(*zip(*points, strict=True), f"C{number}o")
    left.set(yscale="log", xlabel="workers", ylabel="ms", title="steps that compute nothing")
    for number, name in enumerate(("sync", "async")):
        counts = (25, 50, 100, 200)
        middle.plot(
            counts,
            [IMAGES * inception(name, n).batches_per_second for n in counts],
            f"C{number}-",
            label=name,
        )
        for known, fill in ((PUBLISHED_IMAGES, "full"), (READ_IMAGES, "none")):
            points = [(workers, speed) for (n, workers), speed in known.items() if n == name]
            if points:
                middle.plot(*zip(*points, strict=True), f"C{number}o", fillstyle=fill)
    middle.set(xlabel="workers", ylabel="images/s", ylim=(0, None), title="Inception-v3")
    counts = [each.backup for each in backups()]
    right.plot(counts, [each.seconds for each in backups()], "C0-", label="step, s")
    right.plot(4, 1.93, "C0o")
    right.plot(counts, [each.normalised for each in backups()], "C1-", label="normalised speed-up")
    right.plot(3, 1.095, "C1o")
    right.set(xlabel="backup workers beside 50", title="backup workers")
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.legend(title="lines: virtual time\npoints: the paper")
    # Text stays text, and the same numbers make the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "osdi16"}):
        figure.savefig(folder / "figure.svg", metadata={"Date": None})
        figure.savefig(folder / "figure.png", dpi=130, metadata={"Software": None})


def tables() -> Sequence[str]:
    """The tables of the README."""
    return null_table(), images_table(), backup_table()


if __name__ == "__main__":
    print("\n\n".join(tables()))
    draw(Path(__file__).parent)
