"""The runs of the sketches, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/sketches/jobs.py OUT

Each run goes through lsgd.train.train as it is and leaves its folder below OUT. One launch makes
all of them, since starting costs most; OUT/ends.json has how each ended on each process.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.joined_run import train_joined

from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.allreduce import AllReduce
from lsgd.workloads.language import Language
from sketches.averages import AveragedImages
from sketches.normless import NormlessImages

ANY = [
    "precision=float64", "schedule.milestones=[2]", "log_steps=1", "device=cpu",
    "inputs=synthetic",
]  # fmt: skip
EVERY = [
    "+recipe=digits", *ANY, "epochs=3", "schedule.warmup_epochs=1", "val_batch=8",
    "model.last_gamma=1.0",
]  # fmt: skip
# 5 steps an epoch, the last of 8 + 8 + 6 + 0 images.
IMAGES = [
    *EVERY, "workers=4", "worker_batch=8", "data.train_examples=150", "data.val_examples=37",
    "tail=keep", "schedule.reference_batch=16", "workers_per_pass=4",
]  # fmt: skip
# 5 windows of 16 streams, and 5 tokens that no stream has; evaluation streams of different lengths.
TEXT = [
    "+recipe=ptb_small", *ANY, "epochs=4", "workers=8", "worker_batch=2", "workers_per_pass=8",
    "data.window=6",
    "data.train_examples=501", "data.val_examples=57", "data.test_examples=50", "data.classes=20",
    "data.eval_streams=3", "model.embedding=7", "model.width=12", "optim.momentum=0.9",
    "optim.clip_norm=1",
]  # fmt: skip
KINDS: dict[str, tuple[type, type, list[str]]] = {
    "language": (Language, AllReduce, TEXT),
    "averages": (AveragedImages, AllReduce, IMAGES),
    "normless": (NormlessImages, AllReduce, IMAGES),
}
"""The workload, the strategy and the words of each kind of run."""
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "language-1": ("language", {"workers_per_pass": 1}),
    "language-3": ("language", {"workers_per_pass": 3}),
    "language-8": ("language", {"workers_per_pass": 8}),
    "averages-1": ("averages", {"workers_per_pass": 1}),
    "averages-4": ("averages", {"workers_per_pass": 4}),
    "normless": ("normless", {}),
    "language-left": ("language", {"told": True}),
    "averages-left": ("averages", {"told": True}),
    "normless-left": ("normless", {"told": True}),
}
"""The runs that any number of processes makes, by the names of their folders; of each the kind, and
what `run` is to do."""
TAKEN_OVER = {
    "language-taken-over": ("language", "language-left"),
    "averages-taken-over": ("averages", "averages-left"),
    "normless-taken-over": ("normless", "normless-left"),
}
"""Of each run that a job takes over the kind, and the run that one process has left."""
TOLD = 6
"""The step of the run in which a process is told to leave: the second of the second epoch."""


@cache
def recipe(kind: str, *words: str) -> Recipe:
    """The recipe of a kind of run, changed by these words; kept, since reading takes long."""
    return config.load_recipe([*KINDS[kind][2], *words])


def told_to_leave(strategy: type) -> type:
    """The strategy, on a process that gets a signal in a step."""

    class Told(strategy):
        def read(self, task: Any, *, leave: bool) -> None:
            if task.step == TOLD:
                os.kill(os.getpid(), signal.SIGTERM)
            super().read(task, leave=leave)

    return Told


def poisoned(workload: type) -> type:
    """The workload, on a process whose loss in a step is no number."""

    class Poisoned(workload):
        def loss(self, model: Any, batch: Any, each: Any) -> Any:
            loss, counts = super().loss(model, batch, each)
            return (loss * torch.nan if (each.epoch, each.step) == (1, 1) else loss), counts

    return Poisoned


def run(
    comm: Comm, folder: Path, kind: str, *words: str, begin_with: Path | None = None,
    told: bool = False, **fields: Any,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state, with these fields of the recipe.

    Returns how the run ended, if early, as it does if the last process is told to leave.
    """
    workload, strategy, _ = KINDS[kind]
    if told and comm.rank == comm.world_size - 1:
        strategy = told_to_leave(strategy)
    name = "language.Language" if workload is Language else "images.Images"
    put = {f"lsgd.workloads.{name}": workload, "lsgd.strategy.allreduce.AllReduce": strategy}
    trained = replace(recipe(kind, *words), run_dir=str(folder), **fields)
    return train_joined(comm, trained, put, begin_with)


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        ends = {name: run(comm, out / name, kind, **how) for name, (kind, how) in RUNS.items()}
        for name, (kind, left) in TAKEN_OVER.items():
            ends[name] = run(comm, out / name, kind, begin_with=out.parent / "alone" / left)
        ends_by_process = comm.gather_objects(ends)
        if comm.rank == 0:
            (out / "ends.json").write_text(json.dumps(ends_by_process))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
