"""Runs on parameter servers, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/helpers/server_runs.py OUT

One launch makes all of them, since starting costs most. OUT/ends.json has of each process how each
run through lsgd.train.train ended, OUT/differences.json how far all the others are from all-reduce,
OUT/rows.json the same of those in which rows of embeddings travel, and OUT/lost-RANK.json what the
others see of a process that is killed at the end.
"""

import copy
import json
import os
import signal
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import product, tee
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from sketches import jobs
from sketches.averages import AveragedImages

from helpers.joined_run import train_joined
from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.comm.single import SingleComm
from lsgd.errors import PeerLost
from lsgd.learner import Learner
from lsgd.models import initialise
from lsgd.recipe import CommSettings, Recipe, StrategySettings
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.run.checkpoint import Checkpoint
from lsgd.step import train_step
from lsgd.strategy.allreduce import AllReduce
from lsgd.strategy.placement import PLACEMENTS
from lsgd.strategy.servers import SyncServers

# 5 steps an epoch, the last of 6 + 6 + 6 + 2 + 0 images.
WORDS = [
    *jobs.EVERY, "workers=5", "worker_batch=6", "data.train_examples=140", "data.val_examples=37",
    "tail=keep", "schedule.reference_batch=16", "workers_per_pass=5", "optim.weight_decay=0.01",
]  # fmt: skip
STEPS, CUT = 100, 52
"""The steps of a run that is compared, and those after which another goes on with it."""
SPLIT = 100
"""The elements from which a parameter is split, so that the one of 1440 is."""
ALLREDUCE = StrategySettings()
TIMEOUT = 60
"""Seconds after which a process that is silent is given up."""
PATCHING = Lock()
"""Held by the thread that changes what all of them see."""


def sync(servers: int = 3, topology: str = "central", placement: str = "greedy") -> Any:
    """The settings of synchronous servers."""
    return StrategySettings("sync", servers=servers, topology=topology, placement=placement)


TOPOLOGIES = "central", "colocated"
PLACED = [
    *((1, topology, "greedy") for topology in TOPOLOGIES),
    *(
        (servers, TOPOLOGIES[number % 2], placement)
        for number, (servers, placement) in enumerate(product((2, 3, 5), PLACEMENTS))
    ),
]
CASES = {" ".join(map(str, each)): sync(*each) for each in PLACED}
"""Ways to place the servers, in which any two of number, topology and placement meet; a single
server has everything, wherever it is placed."""


class TinyImages(AveragedImages):
    """Images under a network that is small and has BN, and with the mean of its weights, which is
    right where all processes have the whole model after each step."""

    def network(self) -> nn.Module:
        """The network, drawn from the seed."""
        data = self.recipe.data
        model = nn.Sequential(
            nn.Conv2d(data.channels, 4, 3, bias=False), WorkerBatchNorm2d(4), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * (data.image_size - 2) ** 2, data.classes),
        )  # fmt: skip
        initialise(model, last_gamma=1, seed=self.recipe.seed)
        return model.to(self.dtype)


class NaNGradient(TinyImages):
    """The gradient of a single number, which one server has, is none in a step."""

    def loss(self, model: Any, batch: Any, each: Any) -> Any:
        """The loss, with a summand that is 0."""
        loss, counts = super().loss(model, batch, each)
        if (each.epoch, each.step) == (1, 1) and each.split == "train":
            loss = loss + (0 * model[-1].bias[0]).sqrt()
        return loss, counts


@cache
def recipe(*words: str) -> Recipe:
    """The recipe, changed by these words; kept, since reading takes long."""
    return config.load_recipe([*WORDS, *words])


def make_learner(comm: Comm, strategy: StrategySettings, *words: str) -> Learner:
    """A learner of the tiny network for STEPS steps."""
    made = replace(recipe(f"epochs={STEPS // 5}", *words), strategy=strategy)
    with (
        PATCHING,
        patch("lsgd.workloads.images.Images", TinyImages),
        patch("lsgd.strategy.placement.SPLIT", SPLIT),
    ):
        return Learner(made, comm, torch.device("cpu"))


def make_steps(learner: Learner, until: int = STEPS) -> Checkpoint:
    """Make steps of the run up to this one; what process 0 would save, on every process."""
    inputs = learner.workload.inputs()
    for epoch, steps in learner.recipe.epochs_from(learner.next_step):
        if steps := [step for step in steps if step < until]:
            tasks, ahead = tee(learner.strategy.tasks(epoch, steps))
            batches = inputs.train(each for task in ahead for each in task.passes)
            for task in tasks:
                train_step(learner, task, batches)
    return learner.comm.broadcast_object(copy.deepcopy(learner.checkpoint()))


def go_on(
    comm: Comm, strategy: StrategySettings, saved: Checkpoint, *words: str, until: int = STEPS
) -> Checkpoint:
    """What the run comes to that goes on from here."""
    learner = make_learner(comm, strategy, *words)
    learner.restore(copy.deepcopy(saved))
    return make_steps(learner, until)


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested values; of the shares of BN's statistics their sum."""
    match value:
        case Tensor():
            return [value]
        case {"shares": shares}:
            return [shares.sum(0)]
        case dict():
            return [each for entry in value.values() for each in tensors(entry)]
    return []


def distance(one: Checkpoint, other: Checkpoint) -> float:
    """The largest difference of any number in two checkpoints, which else say the same."""
    for name in ("fingerprint", "step", "order", "lr"):
        assert getattr(one, name) == getattr(other, name)
    assert one.optimizer["param_groups"] == other.optimizer["param_groups"]
    pairs = [
        zip(tensors(getattr(one, name)), tensors(getattr(other, name)), strict=True)
        for name in ("model", "optimizer", "parts", "tally")
    ]
    return max((a.double() - b.double()).abs().max().item() for pair in pairs for a, b in pair)


@cache
def by_allreduce(*words: str, until: int = STEPS) -> Checkpoint:
    """What one process has after so many steps by all-reduce."""
    return make_steps(make_learner(SingleComm(), ALLREDUCE, *words), until)


def compared(comm: Comm, strategy: StrategySettings, *words: str, until: int = STEPS) -> float:
    """The distance of a run of this job from all-reduce, the largest on any of its processes."""
    learner = make_learner(comm, strategy, *words)
    saved = make_steps(learner, until)
    # Each process has the whole model, not only the one that saves it.
    own = replace(saved, model=learner.model.state_dict())
    return max(comm.gather_objects(distance(own, by_allreduce(*words, until=until))))


def resumed(comm: Comm, strategy: StrategySettings) -> dict[str, float]:
    """The distances from all-reduce of runs that are saved by one and go on by another."""
    alone = SingleComm()
    saved = make_steps(make_learner(comm, strategy), CUT)
    summed = make_steps(make_learner(comm, ALLREDUCE), CUT)
    runs = {
        "all-reduce alone after servers": go_on(alone, ALLREDUCE, saved),
        "servers after all-reduce alone": go_on(comm, strategy, by_allreduce(until=CUT)),
        "servers alone after servers": go_on(alone, strategy, saved),
    }
    if comm.world_size <= 3:
        runs["all-reduce after servers"] = go_on(comm, ALLREDUCE, saved)
        runs["servers after all-reduce"] = go_on(comm, strategy, summed)
    return {name: distance(saved, by_allreduce()) for name, saved in runs.items()}


def run(
    comm: Comm, folder: Path, strategy: StrategySettings, *words: str, workload: type = TinyImages,
    begin_with: Path | None = None, told: bool = False,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state; how it ended, if early.

    With `told` the last process gets a signal; another workload is that of process 0 alone.
    """
    put = {
        "lsgd.workloads.images.Images": TinyImages if comm.rank else workload,
        "lsgd.strategy.placement.SPLIT": SPLIT,
    }
    if told and comm.rank == comm.world_size - 1:
        put["lsgd.strategy.servers.SyncServers"] = jobs.told_to_leave(SyncServers)
        put["lsgd.strategy.allreduce.AllReduce"] = jobs.told_to_leave(AllReduce)
    trained = replace(recipe(*words), strategy=strategy, run_dir=str(folder))
    return train_joined(comm, trained, put, begin_with)


RUNS: dict[str, dict[str, Any]] = {
    "whole": {},
    "left": {"told": True},
    "nan-loss": {"workload": jobs.poisoned(TinyImages)},
    "nan-gradient": {"workload": NaNGradient},
}
"""The runs through the page, and what `run` is to do."""
EACH_STEP = "checkpoint_steps=1"
"""The word with which they are saved, so that there is every occasion to save what is broken."""


def lose_a_process(comm: Comm, out: Path) -> None:
    """The last process is killed in a step, and the others write what they have seen of it."""
    learner = make_learner(comm, sync(2))
    make_steps(learner, 3)
    # Or the launcher would end the others before they have said anything.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if comm.rank == comm.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        make_steps(learner)
    except PeerLost as lost:
        seen = {"said": str(lost), "seconds": time.monotonic() - began}
        (out / f"lost-{comm.rank}.json").write_text(json.dumps(seen))
        raise


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=TIMEOUT), torch.device("cpu")) as comm:
        differences = {name: compared(comm, strategy) for name, strategy in CASES.items()}
        for strategy in (sync(), sync(2, "colocated", "hash")):
            for name, difference in resumed(comm, strategy).items():
                differences[f"{name}, {strategy.topology}"] = difference
        ends = {name: run(comm, out / name, sync(), EACH_STEP, **how) for name, how in RUNS.items()}
        left = out.parent / "alone" / "left"
        ends["taken-over"] = run(comm, out / "taken-over", sync(), begin_with=left)
        ends_by_process = comm.gather_objects(ends)
        rows = row_differences(comm)
        if comm.rank == 0:
            (out / "rows.json").write_text(json.dumps(rows))
            (out / "differences.json").write_text(json.dumps(differences))
            (out / "ends.json").write_text(json.dumps(ends_by_process))
        lose_a_process(comm, out)


if __name__ == "__main__":
    from helpers.row_runs import differences as row_differences  # which needs what is in here

    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
