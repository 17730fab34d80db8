"""The throughput and scaling efficiency that runs have measured."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lsgd.recipe import Recipe
from lsgd.recipe.fields import AUTO
from lsgd.report.groups import RecipeRuns
from lsgd.run.read import Run
from lsgd.run.rows import PER_SECOND, Row, finite_number


@dataclass(frozen=True)
class Speed:
    """The throughput of a recipe on some hardware with some number of processes."""

    group: RecipeRuns
    processes: int
    hardware: str
    """The device, and the settings that affect its speed."""
    per_second: float
    """Examples, such as images, per second: the median over the epochs of all runs."""
    slowest: float
    """The throughput of the slowest epoch."""
    fastest: float
    """The throughput of the fastest epoch."""
    efficiency: float | None
    """The throughput per process, relative to the fewest processes of this recipe and hardware.

    None for the fewest processes themselves.
    """


def measure_speeds(groups: Sequence[RecipeRuns]) -> list[Speed]:
    """Return each recipe's median throughput for each hardware and number of processes."""
    rows = []
    for group in groups:
        measured = _measured(group, _throughput)
        for (hardware, processes), speeds in sorted(measured.items()):
            fewest = min(count for other, count in measured if other == hardware)
            alone = statistics.median(measured[hardware, fewest]) / fewest
            median = statistics.median(speeds)
            efficiency = median / processes / alone if processes > fewest else None
            row = Speed(group, processes, hardware, median, min(speeds), max(speeds), efficiency)
            rows.append(row)
    return rows


def examples_per_second(
    group: RecipeRuns,
    processes: int,
    work: Mapping[int, float],
    *,
    on_gpus: bool | None = None,
    threads: int = 1,
) -> float | None:
    """Return the examples/s of a recipe on `processes` processes by its runs; None if unknown.

    It is that of images of data.image_size, by the `work` of a training image of each size relative
    to these.

    It is the median of the runs on as many processes, if there are any, and else of all runs, at
    the speed that each would have on `processes` processes of this many `threads` on a CPU. With
    `on_gpus` the runs on CPUs do not count, or those on GPUs if it is False; it is None if the
    planned run may get either. The throughput of runs may be of tokens, such as those of sentences.
    """

    def at_full_size(run: Run, row: Row) -> float | None:
        speed = _examples_per_second(run, row)
        # Before the median over epochs, which is the speed of one size.
        return speed and speed * work[run.recipe.training_size(row["epoch"] - 1)]

    medians = {
        (hardware, count): statistics.median(speeds) * _scale(hardware, count, processes, threads)
        for (hardware, count), speeds in _measured(group, at_full_size).items()
        if on_gpus is None or on_gpus != is_cpu(hardware)
    }
    alike = [speed for (_, count), speed in medians.items() if count == processes]
    return statistics.median(alike or medians.values()) if medians else None


def _scale(hardware: str, count: int, processes: int, threads: int) -> float:
    """Return the factor by which the speed of `count` processes is converted to `processes` ones.

    It is in proportion to the GPUs, or to the threads on CPUs, but no more than were used there.

    >>> cpu = "Xeon, 8 cores, threads per process: 4; in memory"
    >>> [_scale(cpu, 2, processes, threads) for processes, threads in [(1, 2), (8, 1), (2, 16)]]
    [0.25, 1.0, 1.0]
    >>> _scale("NVIDIA H200; DALI 2.4", 8, 1, 1)
    0.125
    """
    if not is_cpu(hardware):
        return processes / count
    had = re.search(r"threads[^:]*: (\d+)", hardware)
    return min(1.0, processes * threads / (count * max(1, int(had[1])))) if had else 1.0


def _throughput(run: Run, row: Row) -> float | None:
    """Return the throughput in an epoch's row, in the units that the run counts."""
    return finite_number(row, run.things + PER_SECOND)


def _examples_per_second(run: Run, row: Row) -> float | None:
    """Return the examples/s of an epoch by its time per step, or by its throughput in examples."""
    recipe = run.recipe
    if seconds := finite_number(row, "step_seconds"):
        steps: int = recipe.stage(row["epoch"] - 1).steps_per_epoch
        return recipe.train_examples / (steps * seconds)
    # Older runs have no such time.
    speed = _throughput(run, row)
    if recipe.data.workload == "language":
        return speed and speed / recipe.data.window
    return speed if run.things == "images" else None


def _measured(
    group: RecipeRuns, speed: Callable[[Run, Row], float | None]
) -> dict[tuple[str, int], list[float]]:
    """Return the `speed` of each epoch of a recipe's runs, by hardware and number of processes."""
    measured: dict[tuple[str, int], list[float]] = {}
    for run in (*group.runs, *group.repeats):
        where = "unknown hardware", 1
        for row in run.rows:
            if row["kind"] == "start":
                hardware, processes = hardware_and_processes(row)
                where = f"{hardware}; {_execution(run.recipe)}", processes
            if row["kind"] == "epoch" and (value := speed(run, row)):
                measured.setdefault(where, []).append(value)
    return measured


def is_cpu(hardware: str) -> bool:
    """Return whether a run's hardware is a CPU, of which its name states the threads.

    >>> is_cpu("Xeon, 2 cores, threads per process: 1; in memory")
    True
    >>> is_cpu("1 process, NVIDIA H200, threads per process: 8; DALI 2.4")
    False
    """
    return hardware.startswith("CPU") or re.search("cores?, threads", hardware) is not None


def hardware_and_processes(start: Row) -> tuple[str, int]:
    """Return the hardware and the number of processes in a start row of metrics.jsonl.

    >>> hardware_and_processes({"device": "H200", "processes": 2, "inputs": "in memory"})
    ('H200; in memory', 2)
    >>> machine = "2 processes by torchrun over torch.distributed (gloo), CPU, threads: 1"
    >>> hardware_and_processes({"machine": machine})
    ('CPU, threads: 1', 2)
    """
    if "device" in start:
        return f"{start['device']}; {start.get('inputs')}", int(
            finite_number(start, "processes") or 1
        )
    # Older runs have both only in the line for people.
    machine = str(start.get("machine", "unknown hardware"))
    match = re.match(r"(\d+) process(?:es)?(?: by \S+ over [^,]+)?, (.*)", machine)
    return (match[2], int(match[1])) if match else (machine, 1)


def _execution(recipe: Recipe) -> str:
    """Format the recipe's settings that affect a run's speed but not its results as text."""
    settings = [f"workers per pass: {recipe.workers_per_pass}"]
    layouts = {True: ["channels_last"], False: [], AUTO: ["channels_last: auto"]}
    settings += layouts[recipe.channels_last]
    settings += ["compiled"] if recipe.compile is True else []
    return ", ".join(settings)
