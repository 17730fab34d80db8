"""Our strategies beside TensorFlow's own: `python -m lsgd.bench strategies`, from words to report.

The report is Markdown, for a README as for a terminal.
"""

import json
import socket
import statistics
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

from lsgd.bench import results
from lsgd.bench.environment import environment
from lsgd.bench.job import python
from lsgd.bench.setting import Result, check_not_launched, machine_lines, noted, setting
from lsgd.bench.tensorflow_job import NAME, REQUIREMENTS, SIZE
from lsgd.bench.timing import Estimate
from lsgd.bench.watched import Command, Watched, watch
from lsgd.config import RecipeParser, load_recipe
from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.installation import install
from lsgd.job.command import count_from, seconds
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_known
from lsgd.rules.sampler import Pass
from lsgd.tables import markdown
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

  python -m lsgd.bench strategies +recipe=fashion_lenet5
  … inputs=synthetic data.train_examples=3200 --rounds 1      made-up images: two minutes
"""

LSGD, TENSORFLOW = "lsgd", "TensorFlow"
MIRRORED, SERVERS = "MultiWorkerMirroredStrategy", "ParameterServerStrategy"
SCRIPT = Path(__file__).with_name("tensorflow_lenet.py")
MODES = {MIRRORED: "mirrored", SERVERS: "servers"}
ROWS = 30
"""The rows of metrics of an epoch."""
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
"""The words by which every run here is one that TensorFlow can make too."""


@dataclass(frozen=True)
class Cell:
    """A strategy of a system, with so many workers in so many processes."""

    system: str
    strategy: str
    workers: int
    processes: int

    @property
    def name(self) -> str:
        """What refusals and results call it."""
        return f"{self.system}, {self.strategy}, {self.workers} on {self.processes}"


CELLS = (
    Cell(TENSORFLOW, MIRRORED, 1, 1),
    Cell(TENSORFLOW, MIRRORED, 2, 2),
    Cell(TENSORFLOW, SERVERS, 1, 3),
    Cell(TENSORFLOW, SERVERS, 2, 4),
    Cell(LSGD, "allreduce", 1, 1),
    Cell(LSGD, "allreduce", 2, 2),
    Cell(LSGD, "sync", 1, 2),
    Cell(LSGD, "sync", 2, 3),
    Cell(LSGD, "async", 1, 1),
    Cell(LSGD, "async", 2, 1),
    Cell(LSGD, "async", 2, 2),
    # A strategy in the order of real processes gets its cells here.
)


def main(argv: Sequence[str]) -> None:
    """Measure what the command line asks for, print the report and keep it in --out."""
    line = RecipeParser(program="lsgd.bench strategies", about=ABOUT)
    line.usage = f"{line.usage} [--rounds N] [--limit SECONDS] [--out FOLDER]"
    line.add_argument("--rounds", type=count_from(1), default=6, help="how often each is run (6)")
    line.add_argument(
        "--limit", type=seconds, default=120, help="seconds after which a run is ended (120)"
    )
    results.add_out(line, "strategies")
    recipe, options = line.read(argv)
    check_not_launched("this benchmark starts its own")
    remedy = "write +recipe=fashion_lenet5"
    check_known(recipe, "bench strategies", remedy, workloads=("images",))
    if recipe.model.name != "lenet5" or recipe.data.channels != 1:
        raise Refused(
            f"model={recipe.model.name} on images of {recipe.data.channels} channels is not there "
            f"in TensorFlow; {remedy}"
        )
    result = setting(torch.device("cpu")) | {
        "recipe": recipe.name,
        "dataset": recipe.data.name,
        "images": recipe.train_examples,
        "worker_batch": recipe.worker_batch,
        "seed": recipe.seed,
        "rounds": options.rounds,
        "cells": {},
        "missing": {},
    }
    with results.recording("strategies", line.prog, argv, options.out) as record:
        bench(result, options, record)
        if not result["cells"]:
            raise Refused("; ".join(result["missing"].values()))
        figures = draw(result)
        if not figures:
            result["missing"]["the figure"] = f"matplotlib is missing: {install('report')}"
        for name, content in figures.items():
            if record.folder:
                with whole(record.folder / name) as file:
                    file.write(content)
        record.end(result, report(result))


def bench(result: Result, options: Namespace, record: results.Record) -> None:
    """Run every cell once in each round: what each run came to goes into `cells` of the result, and
    into `missing` why a cell has failed, which is then left out."""
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory(prefix="lsgd-bench-")))
        total = options.rounds * len(CELLS)
        bar = running.enter_context(tqdm(total=total, desc="strategies", disable=None, leave=False))
        for number in range(options.rounds):
            for cell in CELLS:
                bar.set_postfix_str(cell.name)
                if cell.name not in result["missing"]:
                    with noted(result, cell.name):
                        _run(result, cell, options, folder / f"{number}-{CELLS.index(cell)}")
                bar.update()
            record.keep(result)


def report(result: Result) -> str:
    """The result as a report in Markdown."""
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
            spread(of["batches_per_second"]).shown(".0f"),
            spread(of["cores"]).shown(".2f"),
            spread(_per_cpu_second(of)).shown(".0f"),
            spread(of["start_up"]).shown(".1f"),
            spread(of["start_up_cpu"]).shown(".1f"),
            spread([losses[-1] for losses in of["losses"]]).shown(".3f"),
            "yes" if of["processes"] > cores else "no",
        ]
        for of in result["cells"].values()
    ]
    lines += [markdown(head, rows), ""]
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
    """The content of the figure's files, by file name; none without matplotlib."""
    try:
        from lsgd.bench.strategies_plot import Bar, bars
    except ImportError:
        return {}
    titles = ("batches/s, all workers together", "batches per CPU second", "start-up, CPU s")
    cells = [
        Bar(
            f"{of['strategy']}, {of['workers']} on {of['processes']}",
            of["system"],
            (
                spread(of["batches_per_second"]),
                spread(_per_cpu_second(of)),
                spread(of["start_up_cpu"]),
            ),
        )
        for of in result["cells"].values()
    ]
    return bars(titles, cells)


def spread(values: Sequence[float]) -> Estimate:
    """The median of the rounds, with the lowest and the highest."""
    return Estimate(statistics.median(values), min(values), max(values))


def _run(result: Result, cell: Cell, options: Namespace, folder: Path) -> None:
    """Run a cell in a new folder, and add what it came to."""
    folder.mkdir()
    # Each worker of TensorFlow's servers makes updates of its own, as one worker alone.
    workers = 1 if cell.strategy == SERVERS else cell.workers
    strategy = cell.strategy if cell.system == LSGD else "allreduce"
    words = [*options.words, *SAME, f"workers={workers}", f"strategy={strategy}"]
    recipe = load_recipe(words)
    every = max(1, recipe.steps_per_epoch // ROWS)
    if cell.system == LSGD:
        words += [f"log_steps={every}", f"run_dir={folder}"]
        command = [*python("torch", cell.processes), "-m", "lsgd.train", *words]
        one_thread = {"OMP_NUM_THREADS": "1"}
        rows = folder / "metrics.jsonl"
        watched = watch(cell.system, [(command, one_thread)], rows, limit=options.limit)
    else:
        with _cluster(cell, recipe, every, folder) as (commands, rows):
            watched = watch(cell.system, commands, rows, limit=options.limit)
        _check_network(result, recipe, watched)
    of = result["cells"].setdefault(cell.name, _nothing(cell, every))
    images = recipe.batch_size
    of["batches_per_second"].append(watched.speed(images) / recipe.worker_batch)
    of["cores"].append(watched.cores())
    of["start_up"].append(watched.start_up(images))
    of["start_up_cpu"].append(watched.start_up_cpu())
    of["losses"].append([row["loss"] for row in watched.training])


def _nothing(cell: Cell, every: int) -> dict[str, Any]:
    """The facts about a cell that has not been run."""
    measured: dict[str, Any] = {
        name: [] for name in ("batches_per_second", "cores", "start_up", "start_up_cpu", "losses")
    }
    return vars(cell) | {"log_steps": every} | measured


@contextmanager
def _cluster(
    cell: Cell, recipe: Recipe, every: int, folder: Path
) -> Iterator[tuple[list[Command], Path]]:
    """The processes of a cluster of TensorFlow, the one that writes rows first, and the rows."""
    interpreter = environment(NAME, REQUIREMENTS, size=SIZE)
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
    # -I: what is in the caller's folder or PYTHONPATH is not for this Python.
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
    """The environment of a process of a cluster."""
    config = {"cluster": cluster, "task": {"type": task, "index": index}}
    return {"TF_CONFIG": json.dumps(config), "OMP_NUM_THREADS": "1"}


def _examples(recipe: Recipe, folder: Path) -> list[Path]:
    """A file for each worker: the images of its batches of the epoch as the loader of the recipe
    brings them, and their labels."""
    workload = open_workload(recipe, torch.device("cpu"))
    steps, workers, n = recipe.steps_per_epoch, recipe.workers, recipe.worker_batch
    order = workload.order(0)[: steps * workers * n].reshape(steps, workers, n)
    inputs, files = workload.inputs(), []
    for worker in range(workers):
        of_worker = Pass(0, order[:, worker].ravel())
        [(images, labels)] = inputs.train([of_worker])
        records = torch.cat([images.flatten(1), labels[:, None].to(images.dtype)], 1)
        files.append(folder / f"examples-{worker}")
        records.numpy().astype(np.float32).tofile(files[-1])
    return files


def _check_network(result: Result, recipe: Recipe, watched: Watched) -> None:
    """Note TensorFlow's version; raise Refused if its network has other parameters."""
    start = watched.rows[0]
    network = open_workload(recipe, torch.device("cpu")).network()
    ours = sum(each.numel() for each in network.parameters())
    if start["parameters"] != ours:
        raise Refused(
            f"TensorFlow's network has {start['parameters']} parameters, and that of the recipe "
            f"{ours}; write the same one in {SCRIPT.name}"
        )
    result["parameters"] = ours
    result["versions"]["tensorflow"] = start["tensorflow"]


def _free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody has at the moment."""
    with ExitStack() as bound:
        sockets = [bound.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _per_cpu_second(of: Mapping[str, Any]) -> list[float]:
    pairs = zip(of["batches_per_second"], of["cores"], strict=True)
    return [speed / cores for speed, cores in pairs]


def _differences(result: Result) -> dict[int, tuple[int, float]]:
    """The updates of the first row, and how far its loss in TensorFlow is from ours at most, by the
    number of workers whose gradients are summed."""
    first = {
        (of["strategy"], of["workers"]): (of["log_steps"], [each[0] for each in of["losses"]])
        for of in result["cells"].values()
    }
    return {
        workers: (
            updates,
            max(abs(a - b) for a in theirs for b in first["allreduce", workers][1]),
        )
        for (strategy, workers), (updates, theirs) in first.items()
        if strategy == MIRRORED and ("allreduce", workers) in first
    }
