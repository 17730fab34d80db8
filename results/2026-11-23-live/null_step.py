"""The time of a step that computes nothing, on real processes, as figure 6 of Abadi et al. 2016.

    python results/2026-11-23-live/null_step.py

prints the table of the README beside it and keeps all milliseconds in null_step.json. It starts a
job for each number of workers and servers, a process for each of them, over gloo on this machine.
Workers read the parameters, push a gradient of as many numbers, and wait for each other's update:
strategy=sync with plain SGD. What is read and pushed is a number, 20 MB, or of a table 32 rows.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lsgd import config
from lsgd.comm import joined
from lsgd.metric_sums import MetricSums
from lsgd.recipe import CommSettings
from lsgd.strategy import StepTask
from lsgd.strategy.servers import SyncServers
from lsgd.tables import markdown_table
from lsgd.workloads import open_workload

HERE = Path(__file__).parent
JOBS = [(workers, servers) for servers in (1, 2) for workers in (1, 2, 4)]
STEPS, FIRST = 30, 5
"""The steps that count, and those before them, which do not."""
WIDTH, ROWS = 64, 32
SHARES = (10, 50, 90)
KINDS = ("scalar", "dense, 20 MB", "32 rows of 16 MiB", "32 rows of 256 MiB")
WORDS = [
    "+recipe=fashion_lenet5", "inputs=synthetic", "device=cpu", "strategy=sync", "worker_batch=2",
    "data.train_examples=1000", "optim=sgd", "optim.momentum=0", "optim.nesterov=false",
    "optim.weight_decay=0", "workers_per_pass=1",
]  # fmt: skip


class Table(nn.Module):
    """A table, and a number beside it, as each model has parameters that are none."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(megabytes * 2**20 // 4 // WIDTH, WIDTH)
        self.number = nn.Parameter(torch.zeros(1))


def network(kind: str) -> nn.Module:
    """The parameters of a kind; those of 20 MB in 20 parts, which servers share."""
    if kind.startswith("32 rows"):
        return Table(int(kind.split()[3]))
    sizes = [1] if kind == "scalar" else 20 * [250_000]
    return nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])


def main(out: Path, workers: int, servers: int) -> None:
    """Make the steps of all kinds by turns on a process of a job; process 0 keeps their times."""
    device = torch.device("cpu")
    recipe = config.load_recipe([*WORDS, f"workers={workers}", f"strategy.servers={servers}"])
    workload = open_workload(recipe, device)
    with joined(CommSettings(), device) as comm:

        def stepper(kind: str) -> Callable[[int], float]:
            model = network(kind)
            sparse = isinstance(model, Table)
            own = replace(recipe, strategy=replace(recipe.strategy, sparse_rows=sparse))
            tally = MetricSums(len(workload.count_names), device)
            strategy = SyncServers(own, workload, model, comm, tally)
            generator = torch.Generator().manual_seed(comm.rank)

            def step(number: int) -> float:
                task = StepTask(number, divisor=1, active_workers=workers, micro_batches=[])
                ids = torch.empty(0, dtype=torch.int64)
                if sparse:
                    count = model.rows.num_embeddings
                    ids = torch.randint(count, (ROWS,), generator=generator)
                comm.gather_objects(None)  # so that all begin at once
                began = time.perf_counter()
                strategy.begin(task, stop_requested=False)
                if comm.rank < workers:
                    loss = sum(each.sum() for each in model.parameters() if not sparse)
                    if sparse:
                        loss = model.rows(ids).sum() + model.number.sum()
                    strategy.backward(loss)
                strategy.step(task)
                return 1e3 * (time.perf_counter() - began)

            return step

        steppers = {kind: stepper(kind) for kind in KINDS}
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for number in range(FIRST + STEPS):
            for kind in KINDS if number % 2 else KINDS[::-1]:
                taken = steppers[kind](number)
                if number >= FIRST:
                    times[kind].append(round(taken, 4))
        if comm.rank == 0:
            out.write_text(json.dumps(times))


def start() -> None:
    """Start all jobs, and report."""
    kept = {}
    for workers, servers in JOBS:
        out = HERE / "part.json"
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node"]
        command = [sys.executable, "-m", *torchrun, str(workers + servers), __file__]
        subprocess.run(
            [*command, str(out), str(workers), str(servers)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=400,
            check=True,
        )
        kept[f"{workers} workers, {servers} servers"] = json.loads(out.read_text())
        out.unlink()
    (HERE / "null_step.json").write_text(json.dumps(kept) + "\n")
    print(f"load {os.getloadavg()[0]:.1f} after\n")
    head = ["workers", "servers", *KINDS]
    rows = [
        [
            str(workers),
            str(servers),
            *(
                "{1:.2f} ({0:.2f} to {2:.2f})".format(*np.percentile(times, SHARES))
                for times in kept[f"{workers} workers, {servers} servers"].values()
            ),
        ]
        for workers, servers in JOBS
    ]
    print(markdown_table(head, rows))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    else:
        start()
