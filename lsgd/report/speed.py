"""Speed and scaling efficiency, as the runs wrote them down."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lsgd.recipe import Recipe
from lsgd.report.groups import Group
from lsgd.run.read import Run
from lsgd.run.rows import PER_SECOND, Row, number


@dataclass(frozen=True)
class Speed:
    """The speed of a recipe on some hardware, with some number of processes."""

    group: Group
    processes: int
    hardware: str
    """The device, and the settings that decide how fast it is."""
    per_second: float
    """What the runs count, such as images, per second: median over the epochs of all runs."""
    slowest: float
    """The speed of the slowest epoch."""
    fastest: float
    """The speed of the fastest epoch."""
    efficiency: float | None
    """The speed per process, as a share of that of the fewest processes of this recipe on this
    hardware; None for these."""


def measure(groups: Sequence[Group]) -> list[Speed]:
    """The speed of every recipe on every hardware with every number of processes."""
    rows = []
    for group in groups:
        measured: dict[tuple[str, int], list[float]] = {}
        for run in (*group.runs, *group.repeats):
            for where, speed in _epochs(run):
                measured.setdefault(where, []).append(speed)
        for (hardware, processes), speeds in sorted(measured.items()):
            fewest = min(count for other, count in measured if other == hardware)
            alone = statistics.median(measured[hardware, fewest]) / fewest
            median = statistics.median(speeds)
            efficiency = median / processes / alone if processes > fewest else None
            row = Speed(group, processes, hardware, median, min(speeds), max(speeds), efficiency)
            rows.append(row)
    return rows


def _epochs(run: Run) -> list[tuple[tuple[str, int], float]]:
    """Where each epoch was trained, and its speed."""
    key = run.things + PER_SECOND
    where, speeds = ("unknown hardware", 1), list[tuple[tuple[str, int], float]]()
    for row in run.rows:
        if row["kind"] == "start":
            hardware, processes = place(row)
            where = f"{hardware}; {_execution(run.recipe)}", processes
        speed = number(row, key)
        if row["kind"] == "epoch" and speed:
            speeds.append((where, speed))
    return speeds


def place(start: Row) -> tuple[str, int]:
    """The hardware and the number of processes in a row of kind start.

    >>> place({"device": "H200", "processes": 2, "inputs": "in memory", "machine": "…"})
    ('H200; in memory', 2)
    >>> place({"machine": "2 processes by torchrun over torch.distributed (gloo), CPU, threads: 1"})
    ('CPU, threads: 1', 2)
    """
    if "device" in start:
        return f"{start['device']}; {start.get('inputs')}", int(number(start, "processes") or 1)
    # Older runs have them only in the line that people read.
    machine = str(start.get("machine", "unknown hardware"))
    match = re.match(r"(\d+) process(?:es)?(?: by \S+ over [^,]+)?, (.*)", machine)
    return (match[2], int(match[1])) if match else (machine, 1)


def _execution(recipe: Recipe) -> str:
    words = [f"workers per pass: {recipe.workers_per_pass}"]
    words += ["channels_last"] if recipe.channels_last else []
    words += ["compiled"] if recipe.compile else []
    return ", ".join(words)
