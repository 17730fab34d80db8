"""The time of a step on a parameter server for 32 rows of a small and of a large table.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 \\
        results/2026-11-23-sparse-rows/sparse_rows.py

prints the tables of the README beside it and writes there what they are made of, steps.json. One
process is the worker and the other the server, and their messages go over gloo. The steps with the
small and the large table take turns, so that what else the machine does disturbs both alike.
"""

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from lsgd import config
from lsgd.comm import joined
from lsgd.learner import Learner
from lsgd.recipe import CommSettings, StrategySettings
from lsgd.strategy import StepTask
from lsgd.tables import markdown_table

HERE = Path(__file__).parent
WIDTH, MEGABYTES, ROWS = 64, (16, 256), 32
"""The float32 numbers of a row, the sizes of the tables in MiB, and the rows that a step uses."""
ROUNDS, FIRST = 30, 5
"""The steps that count, and those before them, which do not."""
WORDS = [
    "+recipe=conll_bilstm", "inputs=synthetic", "device=cpu", "workers=1", "worker_batch=1",
    "workers_per_pass=1", "data.train_examples=100", "data.val_examples=2", "data.test_examples=0",
    f"model.embedding={WIDTH}", "model.width=8", "optim=sgd", "optim.momentum=0",
    "optim.nesterov=false", "optim.weight_decay=0",
]  # fmt: skip
NAMES = ("step", "push, update, reply")
"""What is timed: a step, which clears the gradients and makes the backward pass of the embedding
too, and the part of it that has messages."""


def steps_of(learner: Learner) -> Callable[[int], tuple[float, float]]:
    """A function that makes a step of this number, and returns the seconds that it took."""
    strategy, table = learner.strategy, learner.model.get_submodule("embedding")

    def make(number: int) -> tuple[float, float]:
        task = StepTask(number, divisor=1, active_workers=1, micro_batches=[])
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(table.weight.shape[0], (4 * ROWS,), generator=generator)
        ids = ids.unique()[torch.randperm(len(ids.unique()), generator=generator)[:ROWS]]
        learner.comm.gather_objects(None)  # so that both begin at once
        began = time.perf_counter()
        strategy.begin(task, stop_requested=False)
        if strategy.hosted:
            strategy.backward(table(ids).square().sum())
        given = time.perf_counter()
        strategy.step(task)
        ended = time.perf_counter()
        return ended - began, ended - given

    return make


def main() -> None:
    """Make the steps of all runs by turns, and let process 0 report them."""
    device = torch.device("cpu")
    with joined(CommSettings(), device) as comm:
        seconds: dict[str, list[tuple[float, float]]] = {}
        bytes_ = {}
        for kind, sparse in (("rows", True), ("whole", False)):
            strategy = StrategySettings("sync", sparse_rows=sparse)
            learners = {}
            for size in MEGABYTES:
                words = [*WORDS, f"data.words={size * 2**20 // (4 * WIDTH)}"]
                recipe = replace(config.load_recipe(words), strategy=strategy)
                learners[f"{kind}, {size} MiB"] = Learner(recipe, comm, device)
            steps = [(name, steps_of(learner)) for name, learner in learners.items()]
            for number in range(FIRST + ROUNDS):
                for name, step in steps[:: 1 if number % 2 else -1]:
                    taken = step(number)
                    if number >= FIRST:
                        seconds.setdefault(name, []).append(taken)
            bytes_ |= {name: learner.now()["wire_bytes"] for name, learner in learners.items()}
        if comm.rank == 0:
            report(dict(sorted(seconds.items())), bytes_)


def report(seconds: dict[str, list[tuple[float, float]]], bytes_: dict[str, object]) -> None:
    """Print the tables, and keep the seconds."""
    version = f"Python {platform.python_version()}, torch {torch.__version__}"
    print(f"{version}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    rows = []
    for name, pairs in seconds.items():
        row = [name]
        for taken in zip(*pairs, strict=True):
            row += [f"{1e3 * each:.2f}" for each in np.percentile(taken, (10, 50, 90))]
        rows.append([*row, f"{bytes_[name]:,}"])
    spread = [f"{name}, ms: {part}" for name in NAMES for part in ("p10", "median", "p90")]
    print(markdown_table(["run", *spread, "bytes of a step"], rows))
    for kind in ("rows", "whole"):
        of_small, of_large = (seconds[f"{kind}, {size} MiB"] for size in MEGABYTES)
        ratios = [
            median(large) / median(small)
            for small, large in zip(
                zip(*of_small, strict=True), zip(*of_large, strict=True), strict=True
            )
        ]
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(NAMES, ratios, strict=True))
        print(f"\n{kind}, {MEGABYTES[1]} MiB over {MEGABYTES[0]} MiB: {told}")
    kept = {name: [[round(each, 7) for each in pair] for pair in seconds[name]] for name in seconds}
    (HERE / "steps.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
