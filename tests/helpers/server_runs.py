"""Runs with parameter servers, on one process or on threads in place of several."""

import copy
from dataclasses import replace
from functools import cache
from itertools import product, tee
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from helpers.composed import compose_recipe
from helpers.differences import distance
from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.models import initialise
from lsgd.recipe import Recipe, StrategySettings
from lsgd.rules.batchnorm import WorkerBatchNorm2d
from lsgd.run.checkpoint import Checkpoint
from lsgd.step import train_step
from lsgd.strategy.placement import PLACEMENTS
from lsgd.workloads.images import ImageClassification

# 5 steps an epoch, the last of 6 + 6 + 6 + 2 + 0 images.
WORDS = [
    "+recipe=digits", "precision=float64", "device=cpu", "inputs=synthetic", "val_batch=8",
    "schedule.milestones=[2]", "schedule.warmup_epochs=1", "model.last_gamma=1.0", "workers=5",
    "worker_batch=6", "data.train_examples=140", "data.val_examples=37", "tail=keep",
    "schedule.reference_batch=16", "workers_per_pass=5", "optim.weight_decay=0.01",
]  # fmt: skip
STEPS, CUT = 30, 17
"""The steps of a compared run, and the step from which another run resumes it."""
SPLIT = 100
"""The number of elements from which a parameter is split, below the 1440 of the largest one."""
ALLREDUCE = StrategySettings()
PATCHING = Lock()
"""The lock of the thread that patches modules, which all threads share."""


def sync_servers(servers: int = 3, topology: str = "central", placement: str = "greedy") -> Any:
    """Return the strategy settings of synchronous parameter servers."""
    return StrategySettings("sync", servers=servers, topology=topology, placement=placement)


TOPOLOGIES = "central", "colocated"
PLACED = [
    *((1, topology, "greedy") for topology in TOPOLOGIES),
    *(
        (servers, TOPOLOGIES[number % 2], placement)
        for number, (servers, placement) in enumerate(product((2, 3, 5), PLACEMENTS))
    ),
]
CASES = {" ".join(map(str, each)): sync_servers(*each) for each in PLACED}
"""The strategy settings of servers that cover all pairs of number, topology and placement.

A single server holds all parameters, whatever the placement.
"""


class TinyImages(ImageClassification):
    """An image workload with a tiny network that has BN."""

    def network(self) -> nn.Module:
        """Return the tiny network, initialised from the seed."""
        data = self.recipe.data
        model = nn.Sequential(
            nn.Conv2d(data.channels, 4, 3, bias=False), WorkerBatchNorm2d(4), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * (data.image_size - 2) ** 2, data.classes),
        )  # fmt: skip
        initialise(model, last_gamma=1, seed=self.recipe.seed)
        return model.to(self.dtype)


class NaNGradientImages(TinyImages):
    """An image workload in which one element of the gradient, on one server, is NaN in one step."""

    def loss(self, model: Any, batch: Any, each: Any) -> Any:
        """Return the loss, in one training step plus a zero term whose gradient is NaN."""
        loss, counts = super().loss(model, batch, each)
        if (each.epoch, each.step) == (1, 1) and each.split == "train":
            loss = loss + (0 * model[-1].bias[0]).sqrt()
        return loss, counts


@cache
def recipe(*words: str) -> Recipe:
    """Return the recipe of the runs with these overrides, cached since composing takes long."""
    return compose_recipe(*WORDS, *words)


def make_learner(comm: Comm, strategy: StrategySettings, *words: str) -> Learner:
    """Return a learner of the tiny network for a run of STEPS steps with this strategy."""
    made = replace(recipe(f"epochs={STEPS // 5}", *words), strategy=strategy)
    with (
        PATCHING,
        patch("lsgd.workloads.images.ImageClassification", TinyImages),
        patch("lsgd.strategy.placement.SPLIT", SPLIT),
    ):
        return Learner(made, comm, torch.device("cpu"))


def make_steps(learner: Learner, until: int = STEPS) -> Checkpoint:
    """Make the steps of the run before `until`; return process 0's checkpoint on every process."""
    inputs = learner.workload.inputs()
    for epoch, steps in learner.recipe.epochs_from(learner.next_step):
        if steps := [step for step in steps if step < until]:
            tasks, ahead = tee(learner.strategy.tasks(epoch, steps))
            batches = inputs.train(each for task in ahead for each in task.micro_batches)
            for task in tasks:
                train_step(learner, task, batches)
    return learner.comm.broadcast_object(copy.deepcopy(learner.checkpoint()))


def resume(
    comm: Comm, strategy: StrategySettings, saved: Checkpoint, *words: str, until: int = STEPS
) -> Checkpoint:
    """Resume a checkpoint with this communicator and strategy; return the checkpoint at `until`."""
    learner = make_learner(comm, strategy, *words)
    learner.restore(copy.deepcopy(saved))
    return make_steps(learner, until)


@cache
def allreduce_checkpoint(*words: str, until: int = STEPS) -> Checkpoint:
    """Return the checkpoint of a single process after `until` steps by all-reduce, cached."""
    return make_steps(make_learner(SingleComm(), ALLREDUCE, *words), until)


def difference_from_allreduce(
    comm: Comm, strategy: StrategySettings, *words: str, until: int = STEPS
) -> float:
    """Train a run on this job; return its largest difference from all-reduce on any process."""
    learner = make_learner(comm, strategy, *words)
    saved = make_steps(learner, until)
    # Each process has the whole model, not only the one that saves it.
    own = replace(saved, model=learner.model.state_dict())
    return max(comm.gather_objects(distance(own, allreduce_checkpoint(*words, until=until))))


def resumed_differences(comm: Comm, strategy: StrategySettings) -> dict[str, float]:
    """Return the differences from all-reduce of runs resumed with another strategy or job size."""
    alone = SingleComm()
    saved = make_steps(make_learner(comm, strategy), CUT)
    summed = make_steps(make_learner(comm, ALLREDUCE), CUT)
    runs = {
        "all-reduce alone after servers": resume(alone, ALLREDUCE, saved),
        "servers after all-reduce alone": resume(comm, strategy, allreduce_checkpoint(until=CUT)),
        "servers alone after servers": resume(alone, strategy, saved),
    }
    if comm.world_size <= 3:
        runs["all-reduce after servers"] = resume(comm, ALLREDUCE, saved)
        runs["servers after all-reduce"] = resume(comm, strategy, summed)
    return {name: distance(saved, allreduce_checkpoint()) for name, saved in runs.items()}
