"""Benchmark of lsgd's strategies and TensorFlow's: `python -m benchmarks.strategies`.

The report is Markdown, for a README as for a terminal.
"""

import json
import socket
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.command import as_command
from benchmarks.environment import ensure_environment
from benchmarks.figure import write_figure
from benchmarks.run_observation import Command, ObservedRun, observe_run
from benchmarks.tensorflow_job import NAME, REQUIREMENTS, SIZE
from lsgd.bench import results
from lsgd.bench.job import python_command
from lsgd.bench.setting import (
    Result,
    check_not_launched,
    environment_facts,
    machine_lines,
    record_refusal,
)
from lsgd.bench.timing import Estimate
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.job.command import integer_from, seconds
from lsgd.override_syntax import format_override
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_supported
from lsgd.recipe_parser import RecipeParser
from lsgd.rules.sampler import MicroBatch
from lsgd.tables import markdown_table
from lsgd.workloads import open_workload

ABOUT = """\
How fast do strategies train, and how soon do they start? An epoch of LeNet-5 by

  MultiWorkerMirroredStrategy   of TensorFlow: its workers sum their gradients, by gRPC
  ParameterServerStrategy       of TensorFlow, asynchronous: a chief, a server, and its workers
  allreduce, sync, async        of lsgd: python -m lsgd.train, started by torchrun; sync has a
                                process for its server, async is in virtual order

on one worker and on two, each in processes of its own on this machine. All have the same weights at
first, the same images per worker, one thread per process, and SGD with momentum at the recipe's lr
without weight decay or a schedule. Those that make synchronous updates have the same batches too,
so their losses are the same; the report says how far they are apart.

All take turns, so that every round runs each once, from its start to its end. What counts is the
time after the first row of metrics; before it is start-up. TensorFlow is installed in an
environment of its own, once.

  python -m benchmarks.strategies +recipe=fashion_lenet5
  … inputs=synthetic data.train_examples=3200 --rounds 1      made-up images: two minutes
"""

LSGD, TENSORFLOW = "lsgd", "TensorFlow"
MIRRORED, SERVERS = "MultiWorkerMirroredStrategy", "ParameterServerStrategy"
SCRIPT = Path(__file__).with_name("tensorflow_lenet.py")
MODES = {MIRRORED: "mirrored", SERVERS: "servers"}
ROWS = 30
"""The rows of metrics in an epoch."""
SAME = (
    "epochs=1",
    "precision=float32",
    "optim=sgd",
    "optim.nesterov=false",
    "optim.weight_decay=0",
    "schedule.warmup_epochs=0",
    "schedule.milestones=[]",
    "workers_per_pass=1",
    "device=cpu",
)
"""The overrides that reduce every run to what TensorFlow can do too."""


@dataclass(frozen=True)
class StrategyCell:
    """A strategy of lsgd or TensorFlow, with its numbers of workers and processes."""

    system: str
    strategy: str
    workers: int
    processes: int

    @property
    def name(self) -> str:
        """The name of the cell in results and error messages."""
        return f"{self.system}, {self.strategy}, {self.workers} on {self.processes}"


CELLS = (
    StrategyCell(TENSORFLOW, MIRRORED, 1, 1),
    StrategyCell(TENSORFLOW, MIRRORED, 2, 2),
    StrategyCell(TENSORFLOW, SERVERS, 1, 3),
    StrategyCell(TENSORFLOW, SERVERS, 2, 4),
    StrategyCell(LSGD, "allreduce", 1, 1),
    StrategyCell(LSGD, "allreduce", 2, 2),
    StrategyCell(LSGD, "sync", 1, 2),
    StrategyCell(LSGD, "sync", 2, 3),
    StrategyCell(LSGD, "async", 1, 1),
    StrategyCell(LSGD, "async", 2, 1),
    StrategyCell(LSGD, "async", 2, 2),
    # Cells of a strategy with strategy.order=live go here.
)


def strategies(argv: Sequence[str]) -> None:
    """Measure all strategies on the recipe, print the report and save it in --out."""
    line = RecipeParser(program="benchmarks.strategies", about=ABOUT)
    line.usage = f"{line.usage} [--rounds N] [--limit SECONDS] [--out FOLDER]"
    line.add_argument("--rounds", type=integer_from(1), default=6, help="how often each is run (6)")
    line.add_argument(
        "--limit", type=seconds, default=120, help="seconds after which a run is ended (120)"
    )
    results.add_out(line, "strategies")
    recipe, options = line.parse(argv)
    check_not_launched("this benchmark starts its own")
    remedy = "write +recipe=fashion_lenet5"
    check_supported(recipe, "benchmarks.strategies", remedy, workloads=("images",))
    if recipe.model.name != "lenet5" or recipe.data.channels != 1:
        raise UsageError(
            f"model={recipe.model.name} on images of {recipe.data.channels} channels is not there "
            f"in TensorFlow; {remedy}"
        )
    result = environment_facts(torch.device("cpu")) | {
        "recipe": recipe.name,
        "dataset": recipe.data.name,
        "images": recipe.train_examples,
        "worker_batch": recipe.worker_batch,
        "seed": recipe.seed,
        "rounds": options.rounds,
        "cells": {},
        "missing": {},
    }
    with results.open_record("strategies", line.prog, argv, options.out) as record:
        bench(result, options, record)
        if not result["cells"]:
            raise UsageError("; ".join(result["missing"].values()))
        write_figure(record, result, draw)
        record.write_report(result, report(result))


def bench(result: Result, options: Namespace, record: results.BenchmarkRecord) -> None:
    """Run each strategy cell once per round, and store its measurements in the result.

    The measurements go into `cells` of the result, or the reason of a failure into `missing`; a
    cell that has failed is skipped from then on.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory(prefix="lsgd-bench-")))
        total = options.rounds * len(CELLS)
        bar = running.enter_context(tqdm(total=total, desc="strategies", disable=None, leave=False))
        for number in range(options.rounds):
            for cell in CELLS:
                bar.set_postfix_str(cell.name)
                if cell.name not in result["missing"]:
                    with record_refusal(result, cell.name):
                        _run(result, cell, options, folder / f"{number}-{CELLS.index(cell)}")
                bar.update()
            record.write_result(result)


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    lines = [
        f"{result['recipe']}: LeNet-5 on {result['dataset']}, an epoch of {result['images']} "
        f"images, {result['worker_batch']} of a worker in a batch, seed {result['seed']}",
        *machine_lines(result),
        f"{result['rounds']} runs of each; medians (lowest to highest)",
        "",
    ]
    head = [
        "system",
        "strategy",
        "workers",
        "processes",
        "batches/s",
        "CPU s per s",
        "batches/CPU-s",
        "start-up, s",
        "start-up, CPU s",
        "last loss",
        "limited by this machine",
    ]
    cores = result["machine"]["cores"]
    rows = [
        [
            of["system"],
            of["strategy"],
            str(of["workers"]),
            str(of["processes"]),
            median_and_range(of["batches_per_second"]).shown(".0f"),
            median_and_range(of["cores"]).shown(".2f"),
            median_and_range(_per_cpu_second(of)).shown(".0f"),
            median_and_range(of["start_up"]).shown(".1f"),
            median_and_range(of["start_up_cpu"]).shown(".1f"),
            median_and_range([losses[-1] for losses in of["losses"]]).shown(".3f"),
            "yes" if of["processes"] > cores else "no",
        ]
        for of in result["cells"].values()
    ]
    lines += [markdown_table(head, rows), ""]
    if "parameters" in result:
        lines.append(f"- the network of both systems has {result['parameters']} parameters")
    for workers, (updates, difference) in _differences(result).items():
        lines.append(
            f"- {MIRRORED} and allreduce, {workers} {'worker' if workers == 1 else 'workers'}: the "
            f"mean losses of the first {updates} updates are the same within {difference:.1g}"
        )
    lines += [f"- {what} is not measured: {why}" for what, why in result["missing"].items()]
    return "\n".join(lines).rstrip()


def draw(result: Result) -> dict[str, bytes]:
    """Return the figure's files by name; raise ImportError without matplotlib."""
    from benchmarks.plots import StrategyBar, strategy_bars

    titles = ("batches/s, all workers together", "batches per CPU second", "start-up, CPU s")
    cells = [
        StrategyBar(
            f"{of['strategy']}, {of['workers']} on {of['processes']}",
            of["system"],
            (
                median_and_range(of["batches_per_second"]),
                median_and_range(_per_cpu_second(of)),
                median_and_range(of["start_up_cpu"]),
            ),
        )
        for of in result["cells"].values()
    ]
    return strategy_bars(titles, cells)


def median_and_range(values: Sequence[float]) -> Estimate:
    """Return the median of the rounds' values, with the lowest and the highest."""
    return Estimate(statistics.median(values), min(values), max(values))


def _run(result: Result, cell: StrategyCell, options: Namespace, folder: Path) -> None:
    """Run a cell in a new folder, and add its measurements to the result."""
    folder.mkdir()
    # With ParameterServerStrategy each worker makes its own updates, as a single worker does.
    workers = 1 if cell.strategy == SERVERS else cell.workers
    strategy = cell.strategy if cell.system == LSGD else "allreduce"
    overrides = [*options.words, *SAME, f"workers={workers}", f"strategy={strategy}"]
    recipe = load_recipe(overrides)
    every = max(1, recipe.steps_per_epoch // ROWS)
    if cell.system == LSGD:
        overrides += [f"log_steps={every}", format_override("run_dir", folder)]
        command = [*python_command("torch", cell.processes), "-m", "lsgd.train", *overrides]
        one_thread = {"OMP_NUM_THREADS": "1"}
        rows = folder / "metrics.jsonl"
        watched = observe_run(cell.system, [(command, one_thread)], rows, limit=options.limit)
    else:
        with _cluster(cell, recipe, every, folder) as (commands, rows):
            watched = observe_run(cell.system, commands, rows, limit=options.limit)
        _check_network(result, recipe, watched)
    of = result["cells"].setdefault(cell.name, _nothing(cell, every))
    images = recipe.batch_size
    of["batches_per_second"].append(watched.speed(images) / recipe.worker_batch)
    of["cores"].append(watched.busy_cores())
    of["start_up"].append(watched.start_up(images))
    of["start_up_cpu"].append(watched.start_up_cpu())
    of["losses"].append([row["loss"] for row in watched.training])


def _nothing(cell: StrategyCell, every: int) -> dict[str, Any]:
    """Return the facts about a cell, with empty lists for its measurements."""
    measured: dict[str, Any] = {
        name: [] for name in ("batches_per_second", "cores", "start_up", "start_up_cpu", "losses")
    }
    return vars(cell) | {"log_steps": every} | measured


@contextmanager
def _cluster(
    cell: StrategyCell, recipe: Recipe, every: int, folder: Path
) -> Iterator[tuple[list[Command], Path]]:
    """Prepare a TensorFlow cluster: its commands and the file of its rows.

    The process of the first command writes the rows.
    """
    interpreter = ensure_environment(NAME, REQUIREMENTS, size=SIZE)
    weights, rows = folder / "weights.npz", folder / "rows.jsonl"
    network = open_workload(recipe, torch.device("cpu")).network()
    np.savez(weights, **{name: value.numpy() for name, value in network.state_dict().items()})
    given = folder / "setting.json"
    given.write_text(
        json.dumps(
            {
                "strategy": MODES[cell.strategy],
                "examples": [str(file) for file in _examples(recipe, folder)],
                "weights": str(weights),
                "rows": str(rows),
                "steps": recipe.steps_per_epoch,
                "log_steps": every,
                "batch": recipe.worker_batch,
                "lr": recipe.lr(0),
                "momentum": recipe.optim.momentum,
            }
        )
    )
    tasks = {"worker": cell.workers}
    if cell.strategy == SERVERS:
        tasks = {"chief": 1, "worker": cell.workers, "ps": cell.processes - 1 - cell.workers}
    ports = iter(_free_ports(cell.processes))
    cluster = {
        task: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for task, count in tasks.items()
    }
    # -I keeps the caller's folder and PYTHONPATH out of this Python's path.
    command = [str(interpreter), "-I", str(SCRIPT), str(given)]
    try:
        yield (
            [
                (command, _one_thread(cluster, task, index))
                for task, count in tasks.items()
                for index in range(count)
            ],
            rows,
        )
    finally:
        for file in folder.glob("examples-*"):
            file.unlink()


def _one_thread(cluster: Mapping[str, Sequence[str]], task: str, index: int) -> dict[str, str]:
    """Return the environment of one process of a cluster, with a single thread."""
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    return {"TF_CONFIG": json.dumps(config), "OMP_NUM_THREADS": "1"}


def _examples(recipe: Recipe, folder: Path) -> list[Path]:
    """Write a file for each worker with its images and labels of the epoch, and return the files.

    The images are those of its batches, as the recipe's loader returns them.
    """
    workload = open_workload(recipe, torch.device("cpu"))
    steps, workers, n = recipe.steps_per_epoch, recipe.workers, recipe.worker_batch
    order = workload.example_order(0)[: steps * workers * n].reshape(steps, workers, n)
    inputs, files = workload.inputs(), []
    for worker in range(workers):
        of_worker = MicroBatch(0, order[:, worker].ravel())
        [(images, labels)] = inputs.train([of_worker])
        records = torch.cat([images.flatten(1), labels[:, None].to(images.dtype)], 1)
        files.append(folder / f"examples-{worker}")
        records.numpy().astype(np.float32).tofile(files[-1])
    return files


def _check_network(result: Result, recipe: Recipe, watched: ObservedRun) -> None:
    """Record TensorFlow's version; raise UsageError if its network has another parameter count."""
    start = watched.rows[0]
    network = open_workload(recipe, torch.device("cpu")).network()
    ours = sum(each.numel() for each in network.parameters())
    if start["parameters"] != ours:
        raise UsageError(
            f"TensorFlow's network has {start['parameters']} parameters, and that of the recipe "
            f"{ours}; write the same one in {SCRIPT.name}"
        )
    result["parameters"] = ours
    result["versions"]["tensorflow"] = start["tensorflow"]


def _free_ports(number: int) -> list[int]:
    """Return TCP ports of this machine that are free at the moment."""
    with ExitStack() as bound:
        sockets = [bound.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _per_cpu_second(of: Mapping[str, Any]) -> list[float]:
    pairs = zip(of["batches_per_second"], of["cores"], strict=True)
    return [speed / cores for speed, cores in pairs]


def _differences(result: Result) -> dict[int, tuple[int, float]]:
    """Return the largest difference of the first row's loss in TensorFlow to lsgd's all-reduce.

    The keys are the numbers of workers whose gradients are summed; the values start with the number
    of updates in that row.
    """
    first = {
        (of["strategy"], of["workers"]): (of["log_steps"], [each[0] for each in of["losses"]])
        for of in result["cells"].values()
    }
    return {
        workers: (updates, max(abs(a - b) for a in theirs for b in first["allreduce", workers][1]))
        for (strategy, workers), (updates, theirs) in first.items()
        if strategy == MIRRORED and ("allreduce", workers) in first
    }


main = as_command(strategies)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
