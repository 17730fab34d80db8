"""Counted bytes of a step beside the real peak of a process: `python measure.py [CASE …]`.

Each number is of a process of its own. The real one makes two steps after a small run has loaded
all libraries; its peak is of the second, without what the process had before it made the network.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.learner import Learner
from lsgd.profile.fake_steps import fake_task
from lsgd.profile.memory import count_step
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.step import train_step
from lsgd.tables import markdown_table
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
RESULTS = Path(__file__).with_name("peaks.json")
CASES = {
    "ResNet-50, 64 px, n = 32": ["+recipe=bs256", "data.image_size=64"],
    "ResNet-50, 224 px, n = 4": ["+recipe=bs256", "worker_batch=4"],
    "ResNet-50, 64 px, n = 32, bfloat16": [
        "+recipe=bs256", "data.image_size=64", "precision=bfloat16",
    ],
    "LSTM, n = 32": ["+recipe=ptb_small", "worker_batch=32", "data.train_examples=51200"],
    "TreeLSTM, n = 64": ["+recipe=sst_treelstm", "worker_batch=64", "data.train_examples=512"],
}  # fmt: skip
PASSES = (1, 2, 4, 8)
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""With these glibc gives back at once what is freed: the peak is of what is held."""


def recipe_of(case: str) -> Recipe:
    """The recipe of a case, for 8 workers of made-up examples."""
    return load_recipe([*CASES[case], "workers=8", "workers_per_pass=8", "inputs=synthetic"])


def batches_of(recipe: Recipe) -> Callable[[Sequence[MicroBatch]], Iterator[Any]] | None:
    """What makes the batches of texts and trees; None for images, which have shapes alone."""
    return None if recipe.data.workload == "images" else open_workload(recipe, CPU).inputs().train


def counted(case: str, workers: int) -> dict[str, int]:
    """The counted bytes, by what they are of."""
    recipe = recipe_of(case)
    memory = count_step(recipe, [workers], batches=batches_of(recipe))[workers]
    return memory.by_category


def real(case: str, workers: int) -> dict[str, int]:
    """The peak of this process, and the bytes of buckets that nothing was written to."""
    small = load_recipe(["+recipe=digits", "workers=2", "workers_per_pass=2", "inputs=synthetic"])
    steps(small, 2)
    recipe = recipe_of(case)
    # What brings texts and trees is there before.
    made = batches_of(recipe) or images(recipe)
    gc.collect()
    before = resident("VmRSS")
    return steps(recipe, workers, made, before)


def steps(
    recipe: Recipe, workers: int, made: Callable[..., Iterator[Any]] | None = None, before: int = 0
) -> dict[str, int]:
    """Make two steps; what the second needs beyond the bytes before."""
    learner = Learner(recipe, SingleComm(), CPU)
    task, made = fake_task(learner, workers, most=2), made or images(recipe)
    train_step(learner, task, made(task.micro_batches))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    train_step(learner, task, made(task.micro_batches))
    buckets = learner.strategy.reducer.buckets
    unwritten = sum(each.flat.nbytes for each in buckets if not each.attached)
    return {"peak": resident("VmHWM") - before, "unwritten": unwritten}


def images(recipe: Recipe) -> Callable[[Sequence[MicroBatch]], Iterator[Any]]:
    """What makes images of noise."""
    data = recipe.data

    def made(passes: Sequence[MicroBatch]) -> Iterator[Any]:
        for each in passes:
            count = len(each.examples)
            shape = (count, data.channels, data.image_size, data.image_size)
            yield torch.randn(shape), torch.zeros(count, dtype=torch.int64)

    return made


def resident(name: str) -> int:
    """Bytes of this process in RAM: now, VmRSS, or at most, VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def child(what: str, case: str, workers: int) -> dict[str, int]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", what, case, str(workers)]
    environment = os.environ | RETURNED | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(cases: Sequence[str]) -> None:
    """Measure what is not there yet, keep it, and print the table."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for case in cases or CASES:
        for workers in PASSES:
            key = f"{case}; {workers}"
            if key not in rows:
                rows[key] = child("counted", case, workers) | child("real", case, workers)
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
                print(key, rows[key], flush=True)
    print(table(rows))


def table(rows: dict[str, dict[str, int]]) -> str:
    """The table of all cases, in millions of bytes."""
    shown, parts = [], ("parameters", "gradients", "buckets", "optimizer", "activations")
    for key, row in rows.items():
        case, _, workers = key.rpartition("; ")
        held = sum(row[part] for part in parts) - row["unwritten"]
        numbers = [*(row[part] for part in parts), row["unwritten"], held, row["peak"]]
        shown.append(
            [
                case,
                workers,
                *(f"{number / 1e6:,.1f}" for number in numbers),
                f"{100 * (row['peak'] / held - 1):+.1f} %",
            ]
        )
    head = ["network", "workers per pass", *parts, "unwritten", "counted", "real peak", "real"]
    return markdown_table(head, shown)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--child", what, case, workers]:
            found = {"counted": counted, "real": real}[what](case, int(workers))
            print(json.dumps(found))
        case cases:
            main(cases)
