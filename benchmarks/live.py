"""Comparison of asynchronous training on real processes with virtual time.

`python -m benchmarks.live` prints the report as Markdown, for a README as for a terminal.
"""

import statistics
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tqdm import tqdm

from benchmarks.command import as_command
from benchmarks.figure import write_figure
from benchmarks.strategies import median_and_range
from lsgd.bench import results
from lsgd.bench.job import open_job, parse_numbers
from lsgd.bench.setting import (
    Result,
    check_not_launched,
    environment_facts,
    machine_lines,
    record_refusal,
)
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.job.command import Parser, integer_from, seconds
from lsgd.strategy.placement import place
from lsgd.strategy.virtual import server_loads, virtual_epoch
from lsgd.tables import markdown_table
from lsgd.workloads import open_workload

ABOUT = """\
Is virtual time right? Asynchronous training on real processes beside the same recipe in virtual
time: batches/s of LeNet-5 and of an LSTM of 2 x 200 units on 1, 2, 4, 8 workers, with a server of
its own and with a server beside each worker.

Servers, messages and connections are those of strategy.order=live, over gloo on this machine. The
computation of a worker is a sleep as long as virtual time draws it, and the network of each machine
is emulated: it is busy with a message for its bytes over the bandwidth, and then with the next one.

  python -m benchmarks.live                       ten minutes
  … --workers 1,2 --rounds 1 --seconds 2          two minutes
  … cluster.spread=0.3 cluster.duplex=true        another cluster

Updates and messages are work for this machine of which virtual time knows nothing. They go on while
workers sleep and messages are on the way, and only what does not fit in there makes a step longer.
So a cell whose processes together need much of the machine's cores is limited by this machine. As
root they have real-time priority, so that other work is in their way less.
"""


@dataclass(frozen=True)
class WorkerNetwork:
    """A network and the cluster on which its parameters are exchanged."""

    name: str
    recipe: str
    """The recipe that has the network."""
    step: float
    """The seconds that a step of a worker takes."""
    gbits: float
    """The bandwidth of a machine, in Gbit/s."""

    @property
    def recipe_overrides(self) -> list[str]:
        """The overrides that select the network's recipe."""
        return [f"+recipe={self.recipe}"]

    @property
    def cluster_overrides(self) -> list[str]:
        """The overrides that describe the cluster."""
        return [
            f"cluster.step={self.step}",
            f"cluster.server_gbits={self.gbits}",
            f"cluster.worker_gbits={self.gbits}",
        ]


@dataclass(frozen=True)
class TimedCell:
    """A network, a number of workers, and a topology: central or colocated servers."""

    network: WorkerNetwork
    topology: str
    workers: int

    @property
    def processes(self) -> int:
        """The number of processes of the cell's job."""
        return self.workers + (self.topology == "central")

    @property
    def servers(self) -> int:
        """The number of servers: one in all, or one beside each worker."""
        return self.workers if self.topology == "colocated" else 1

    @property
    def name(self) -> str:
        """The name of the cell in results and error messages."""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.network.name}, {self.topology}, {workers}"


NETWORKS = (
    WorkerNetwork("LeNet-5", "fashion_lenet5", 0.007, 1),
    WorkerNetwork("LSTM", "ptb_small", 0.09, 10),
)
TOPOLOGIES = ("central", "colocated")
BUSY = 0.7
"""The share of the machine's cores at which a cell counts as limited by this machine."""
BAND = 0.2
"""The largest allowed relative error of virtual time in cells not limited by this machine."""
LEAST = 12
"""The smallest number of batches of a worker in a round."""
CUT = 0.1
"""The share of a round's updates to drop at its beginning, and again at its end."""
KNOWN = ("cluster.", "strategy.placement=", "seed=")
"""The prefixes of the overrides that the command accepts."""
SAME = (
    "+recipe=fashion_lenet5",
    "inputs=synthetic",
    "tail=drop",
    "strategy=async",
    "optim=sgd",
    "optim.momentum=0",
    "optim.nesterov=false",
    "optim.weight_decay=0",
    "cluster.duplex=false",
    "workers_per_pass=1",
    "device=cpu",
)
"""The overrides of every run.

The images are only counted, and updates are plain SGD, since virtual time has no time for them.
"""


def live(argv: Sequence[str]) -> None:
    """Measure the requested cells, print the report and save it in --out."""
    line = Parser("benchmarks.live", ABOUT)
    line.add_argument("words", nargs="*", metavar="key=value", help="the cluster, as in a recipe")
    line.add_argument("--workers", default="1,2,4,8", help="numbers of workers (1,2,4,8)")
    line.add_argument("--rounds", type=integer_from(1), default=5, help="how often each is run (5)")
    line.add_argument(
        "--seconds", type=seconds, default=4, help="how long a round is in virtual time (4)"
    )
    line.add_argument(
        "--limit", type=seconds, default=120, help="seconds after which a round is given up (120)"
    )
    results.add_out(line, "live")
    options = line.parse_intermixed_args(argv)
    check_not_launched("this benchmark starts its own")
    seed = _check_overrides(options.words)
    cells = [
        TimedCell(network, topology, workers)
        for network in NETWORKS
        for topology in TOPOLOGIES
        for workers in parse_numbers("--workers", options.workers, least=1)
    ]
    result = environment_facts(torch.device("cpu")) | {
        "seed": seed,
        "words": options.words,
        "rounds": options.rounds,
        "cells": {},
        "missing": {},
    }
    with results.open_record("live", line.prog, argv, options.out) as record:
        bench(result, cells, options, record)
        write_figure(record, result, draw)
        record.write_report(result, report(result))


def bench(
    result: Result, cells: Sequence[TimedCell], options: Namespace, record: results.BenchmarkRecord
) -> None:
    """Measure every cell on real processes and in virtual time.

    The updates per second of its rounds go into `cells` of the result, or the reason why it failed
    into `missing`.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(TemporaryDirectory(prefix="lsgd-bench-")))
        total = len(cells)
        bar = running.enter_context(tqdm(total=total, desc="live", disable=None, leave=False))
        for number, cell in enumerate(cells):
            bar.set_postfix_str(cell.name)
            with record_refusal(result, cell.name):
                result["cells"][cell.name] = _cell(cell, options, folder / str(number))
            bar.update()
            record.write_result(result)


def report(result: Result) -> str:
    """Return the benchmark's result as a report in Markdown."""
    lines = [
        *machine_lines(result),
        f"asynchronous, {result['rounds']} runs of each cell, seed {result['seed']}; medians "
        "(lowest to highest); computation is a sleep, and the network is emulated",
        "",
    ]
    head = [
        "network",
        "MB",
        "compute, ms",
        "Gbit/s",
        "servers",
        "workers",
        "real batches/s",
        "virtual",
        "virtual / real",
        "CPU s per s",
        "CPU ms per batch",
        "CPU s per s of other work",
        "within 20 %",
    ]
    limit = BUSY * result["machine"]["cores"]
    rows = []
    for of in result["cells"].values():
        off = statistics.median(_ratios(of))
        within = "yes" if abs(off - 1) <= BAND else "no"
        busy = statistics.median(of["cores"])
        rows.append(
            [
                of["network"],
                f"{of['bytes'] / 1e6:.3g}",
                f"{1e3 * of['step']:g}",
                f"{of['gbits']:g}",
                of["topology"],
                str(of["workers"]),
                median_and_range(of["real"]).shown(".1f"),
                f"{statistics.median(of['virtual']):.1f}",
                median_and_range(_ratios(of)).shown(".2f"),
                f"{busy:.2f}",
                f"{1e3 * busy / statistics.median(of['real']):.1f}",
                f"{statistics.median(of['other_cores']):.2f}",
                within if busy < limit else f"{within}, limited by this machine",
            ]
        )
    lines += [markdown_table(head, rows), ""]
    lines.append(
        f"- a cell is limited by this machine where its processes need {limit:g} or more of its "
        f"{result['machine']['cores']} cores"
    )
    lines += [f"- {what} is not measured: {why}" for what, why in result["missing"].items()]
    return "\n".join(lines).rstrip()


def draw(result: Result) -> dict[str, bytes]:
    """Return the figure's files by name; raise ImportError without matplotlib."""
    from benchmarks.plots import SpeedCurves, speed_plots

    limit = BUSY * result["machine"]["cores"]
    plots: dict[str, dict[str, SpeedCurves]] = {}
    for of in result["cells"].values():
        title = f"{of['network']}: {1e3 * of['step']:g} ms, {of['gbits']:g} Gbit/s"
        curves = plots.setdefault(title, {}).setdefault(of["topology"], SpeedCurves({}, {}, set()))
        curves.real[of["workers"]] = median_and_range(of["real"])
        curves.virtual[of["workers"]] = statistics.median(of["virtual"])
        if statistics.median(of["cores"]) >= limit:
            curves.limited.add(of["workers"])
    return speed_plots(plots) if plots else {}


def updates_per_second(updates: Sequence[float]) -> float:
    """Return the updates per second from their times, without the first and the last tenth."""
    begin, end = int(len(updates) * CUT), int(len(updates) * (1 - CUT))
    return (end - begin) / (updates[end] - updates[begin])


def _check_overrides(overrides: Sequence[str]) -> int:
    """Return the seed of the recipe with these overrides.

    Raises UsageError if they change more than the benchmark can emulate.
    """
    for word in overrides:
        if not word.startswith(KNOWN):
            raise UsageError(
                f"{word} is no word of this benchmark, which compares the clusters of "
                f"strategy=async; write {', '.join(f'{name}…' for name in KNOWN)}"
            )
    recipe = load_recipe([*SAME, *overrides])
    if overhead := recipe.cluster.overhead_us:
        raise UsageError(
            f"cluster.overhead_us={overhead:g} is not emulated; leave it out, or add it to "
            "cluster.latency_us"
        )
    return recipe.seed


def _ratios(of: Result) -> list[float]:
    return [virtual / real for virtual, real in zip(of["virtual"], of["real"], strict=True)]


def _cell(cell: TimedCell, options: Namespace, cards: Path) -> Result:
    """Measure the rounds of a cell on real processes and in virtual time."""
    network = cell.network
    workload = open_workload(load_recipe(network.recipe_overrides), torch.device("cpu"))
    sizes = [each.numel() for each in workload.network().parameters()]

    def virtual(tickets: int, epoch: int) -> float:
        recipe = load_recipe(_cell_overrides(cell, tickets, options.words))
        slices = place(sizes, cell.servers, recipe.strategy.placement)
        return updates_per_second(
            virtual_epoch(recipe, server_loads(slices, 4), epoch).timeline.updates
        )

    least = LEAST * cell.workers
    tickets = max(least, int(options.seconds * virtual(least, 0)))
    rounds = _run(cell, tickets, options, cards)
    return {
        "network": network.name,
        "topology": cell.topology,
        "workers": cell.workers,
        "processes": cell.processes,
        "step": network.step,
        "gbits": network.gbits,
        "bytes": 4 * sum(sizes),
        "batches": tickets,
        "real": [updates_per_second(each["pushes"]) for each in rounds],
        "virtual": [virtual(tickets, 1 + number) for number in range(options.rounds)],
        "cores": [each["cores"] for each in rounds],
        "other_cores": [each["other_cores"] for each in rounds],
    }


def _run(cell: TimedCell, tickets: int, options: Namespace, cards: Path) -> list[Result]:
    """Run a cell's rounds on real processes, and return process 0's measurements of each."""
    overrides = _cell_overrides(cell, tickets, [*options.words, "strategy.order=live"])
    with open_job(
        "benchmarks.slept_steps",
        "torch",
        cell.processes,
        SAME,
        limit=options.limit,
        environment={"OMP_NUM_THREADS": "1"},
    ) as job:
        job.prepare([overrides, cell.network.recipe_overrides, str(cards)])
        job.run("epoch", 0)  # The first epoch connects the processes and is not measured.
        return [job.run("epoch", 1 + number) for number in range(options.rounds)]


def _cell_overrides(cell: TimedCell, tickets: int, extra_overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a cell's recipe with `tickets` batches in an epoch."""
    return [
        *SAME,
        f"workers={cell.workers}",
        f"strategy.topology={cell.topology}",
        f"strategy.servers={cell.servers}",
        "worker_batch=2",
        f"data.train_examples={2 * tickets}",
        *cell.network.cluster_overrides,
        *extra_overrides,
    ]


main = as_command(live)

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
