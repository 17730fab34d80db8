"""The runs of the sketches, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/sketches/jobs.py OUT

Each run goes through lsgd.train.train as it is and leaves its folder below OUT. One launch makes
all of them, since starting costs most; OUT/said.json has how each ended on each process.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from lsgd import config
from lsgd.comm import Comm, open_comm
from lsgd.errors import Diverged, Preempted
from lsgd.job.preemption import SIGNALS
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.allreduce import AllReduce
from lsgd.train import train
from sketches.averages import AveragedImages
from sketches.language_model import LanguageModel
from sketches.normless import NormlessImages
from sketches.parameter_server import ParameterServer
from sketches.replay import Replay

EVERY = [
    "+recipe=digits", "precision=float64", "epochs=3", "schedule.milestones=[2]",
    "schedule.warmup_epochs=1", "log_steps=1", "device=cpu", "inputs=synthetic", "val_batch=8",
    "model.last_gamma=1.0",
]  # fmt: skip
# 5 steps an epoch, the last of 8 + 8 + 6 + 0 images.
IMAGES = [
    "workers=4", "worker_batch=8", "data.train_examples=150", "data.val_examples=37", "tail=keep",
    "schedule.reference_batch=16", "workers_per_pass=4",
]  # fmt: skip
# 5 windows of 16 streams.
TEXT = [
    "workers=8", "worker_batch=2", "data.train_examples=80", "data.val_examples=9",
    "schedule.reference_batch=16", "schedule.reference_lr=2", "workers_per_pass=8",
]  # fmt: skip
# 9 updates an epoch.
REPLAYED = [
    "workers=1", "worker_batch=8", "data.train_examples=72", "data.val_examples=37",
    "schedule.reference_batch=16", "workers_per_pass=1",
]  # fmt: skip
KINDS: dict[str, tuple[type, type, list[str]]] = {
    "language": (LanguageModel, AllReduce, TEXT),
    "averages": (AveragedImages, AllReduce, IMAGES),
    "server": (AveragedImages, ParameterServer, IMAGES),
    "normless": (NormlessImages, AllReduce, IMAGES),
    "replay": (AveragedImages, Replay, REPLAYED),
}
"""The workload, the strategy and the words of each kind of run."""
TOLD = 6
"""The step of the run in which a process is told to leave: the second of the second epoch."""


@cache
def recipe(kind: str, *words: str) -> Recipe:
    """The recipe of a kind of run, changed by these words; kept, since reading takes long."""
    return config.load_recipe([*EVERY, *KINDS[kind][2], *words])


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
    comm: Comm, folder: Path, kind: str, *words: str, told: int = -1, poison: int = -1,
    begin_with: Path | None = None, workers: int = 4, **fields: Any,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state, with these fields of the recipe.

    Returns how the run ended, if early. The process of the rank `told` is told to leave, and that
    of `poison` gets a loss that is no number; `workers` are those of a replay.
    """
    workload, strategy, _ = KINDS[kind]
    trained = replace(recipe(kind, *words), run_dir=str(folder), **fields)
    if begin_with and comm.rank == 0:
        shutil.copytree(begin_with, folder, symlinks=True)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with ExitStack() as stack:
        put = {
            "lsgd.workloads.images.Images": poisoned(workload) if poison == comm.rank else workload,
            "lsgd.strategy.allreduce.AllReduce": (
                told_to_leave(strategy) if told == comm.rank else strategy
            ),
            "lsgd.train.open_comm": lambda *_: comm,  # joining once is enough
            "lsgd.run.console.Console.show": lambda *_: None,
            "sketches.replay.Replay.workers": workers,
        }
        for name, value in put.items():
            stack.enter_context(patch(name, value))
        stack.enter_context(patch.object(comm, "close"))
        try:
            train(trained)
        except (Diverged, Preempted) as early:
            return f"{type(early).__name__}: {early}"
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return ""


def cases(comm: Comm, out: Path) -> dict[str, list[str]]:
    """All that any number of processes has to show; returns how each run ended, by process."""
    last, alone = comm.world_size - 1, out.parent / "alone"
    said = {}

    def made(name: str, kind: str, **how: Any) -> None:
        said[name] = comm.gather_objects(run(comm, out / name, kind, **how))

    for kind, carried in (("language", (1, 3, 8)), ("averages", (1, 4))):
        for workers in carried:
            made(f"{kind}-{workers}", kind, workers_per_pass=workers)
    for kind in ("server", "normless"):
        made(kind, kind)
    for kind in ("language", "averages", "server", "normless"):
        made(f"{kind}-left", kind, told=last)
        # What one process has left; the server goes on with a run of all-reduce.
        left = {"server": "averages"}.get(kind, kind)
        if last:
            made(f"{kind}-taken-over", kind, begin_with=alone / f"{left}-left")
    made("server-diverged", "server", poison=0)
    return said


def main(out: Path) -> None:
    """All cases, on every process of a job."""
    comm = open_comm(CommSettings(timeout=60), torch.device("cpu"))
    try:
        said = cases(comm, out)
        if comm.rank == 0:
            (out / "said.json").write_text(json.dumps(said))
    finally:
        comm.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
