"""Runs of real processes that record their order, all made by one launch.

    torchrun --nproc-per-node 4 tests/helpers/live_runs.py OUT

OUT/ends.json has how each ended on each process.
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
from lsgd.comm.single import SingleComm
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.live import Live
from lsgd.workloads.images import Images

# 20 batches of 4, of which the last has 2.
WORDS = [
    "+recipe=digits", "worker_batch=4", "data.train_examples=78", "tail=keep", "epochs=3",
    "schedule.milestones=[2]", "schedule.warmup_epochs=0.5", "schedule.reference_batch=8",
    "model.last_gamma=1.0", "inputs=synthetic", "device=cpu", "data.val_examples=4",
    "workers_per_pass=1", "log_steps=4",
]  # fmt: skip
PROCESSES = 4
KINDS = {
    "async": ["strategy=async", "workers=3"],
    "async on servers": ["strategy=async", "workers=2", "strategy.servers=2"],
    "async beside workers": [
        "strategy=async", "workers=4", "strategy.servers=2", "strategy.topology=colocated",
        "strategy.placement=round_robin",
    ],
    "without BN": ["strategy=async", "workers=3", "model=lenet5", "data.image_size=28"],
    "staleness-aware": ["strategy=async", "strategy.staleness_aware=true", "workers=3"],
    "clipped": ["strategy=async", "workers=2", "strategy.servers=2", "optim.clip_norm=0.5"],
    "local steps": [
        "strategy=async", "strategy.local_steps=3", "strategy.outer=nesterov",
        "strategy.outer_momentum=0.5", "strategy.outer_lr=0.7", "workers=2", "strategy.servers=2",
    ],
    "bounded": ["strategy=bounded", "strategy.slack=0", "workers=3"],
    "bounded on servers": [
        "strategy=bounded", "strategy.slack=1", "workers=2", "strategy.servers=2",
    ],
    "backup": ["strategy=backup", "workers=3", "strategy.backup=1"],
    "backup on servers": [
        "strategy=backup", "workers=4", "strategy.backup=2", "strategy.servers=3",
        "strategy.topology=colocated",
    ],
}  # fmt: skip
"""The words of every kind of run."""
LEFT, NO_NUMBER = "async on servers", "bounded"
"""The kinds of the runs that are left, and end since a loss is no number."""


class Told(Live):
    """The strategy, on a process that gets a signal in a step."""

    def read(self, task: Any, *, leave: bool) -> None:
        if task.passes[0].epoch == 1 and self.given == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        super().read(task, leave=leave)


class Poisoned(Images):
    """The workload, in whose second epoch the loss of an example is no number."""

    def loss(self, model: Any, batch: Any, each: Any) -> Any:
        loss, counts = super().loss(model, batch, each)
        return (loss * torch.nan if each.epoch == 1 and 5 in each.examples else loss), counts


@cache
def recipe(*words: str) -> Recipe:
    """The small recipe with these words; kept, since reading takes long."""
    return config.load_recipe([*WORDS, *words])


def run(
    comm: Comm, folder: Path, kind: str, *, begin_with: Path | None = None, told: bool = False,
    poison: bool = False,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state; how it ended, if early.

    The last process with a worker is told to leave in a step, or the loss of one is no number.
    """
    made = replace(recipe(*KINDS[kind], "strategy.order=live"), run_dir=str(folder))
    put: dict[str, type] = {}
    if told and comm.rank == made.workers - 1:
        put["lsgd.strategy.live.Live"] = Told
    if poison:
        put["lsgd.workloads.images.Images"] = Poisoned
    return train_joined(comm, made, put, begin_with)


def replay(folder: Path, kind: str, recorded: Path, *, poison: bool = False) -> str:
    """Make a run again, alone, by the orders that it has recorded."""
    order = f"strategy.order={recorded / 'orders.npz'}"
    made = replace(recipe(*KINDS[kind], order), run_dir=str(folder))
    put = {"lsgd.workloads.images.Images": Poisoned} if poison else {}
    return train_joined(SingleComm(), made, put, None)


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        ends = {kind: run(comm, out / kind, kind) for kind in KINDS}
        ends["left"] = run(comm, out / "left", LEFT, told=True)
        ends["went on"] = run(comm, out / "went on", LEFT, begin_with=out / "left")
        ends["no number"] = run(comm, out / "no number", NO_NUMBER, poison=True)
        ends_by_process = comm.gather_objects(ends)
        if comm.rank == 0:
            (out / "ends.json").write_text(json.dumps(ends_by_process))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
