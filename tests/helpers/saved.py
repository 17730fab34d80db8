"""Checkpoints to test with: of a few real steps, and one made up of a little of everything."""

from pathlib import Path

import torch

from helpers.composed import composed
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.folder import Opened, open_run
from lsgd.step import train_step

CPU = torch.device("cpu")
WORDS = ["+recipe=digits", "workers=2", "worker_batch=8", "schedule.reference_batch=8"]


def recipe(*words: str) -> Recipe:
    return composed(*WORDS, *words)


def open_once(made: Recipe) -> Opened:
    """What a job of this recipe finds in its run folder, which it has then left."""
    with open_run(made, SingleComm()) as opened:
        return opened


def make_steps(learner: Learner, first: int, last: int) -> None:
    """Make these steps of the run, all of its first epoch."""
    tasks = list(learner.strategy.tasks(0, list(range(first, last))))
    batches = learner.workload.inputs().train(each for task in tasks for each in task.passes)
    for task in tasks:
        train_step(learner, task, batches)


def after(made: Recipe, first: int, last: int) -> Learner:
    """A learner of this recipe which has made these steps."""
    learner = Learner(made, SingleComm(), CPU)
    make_steps(learner, first, last)
    return learner


def tiny(step: int = 3) -> Checkpoint:
    """A checkpoint with a little of everything that one may hold."""
    return Checkpoint(
        recipe={"name": "a", "milestones": [1, 2.5], "root": None},
        fingerprint="f" * 8,
        step=step,
        epoch=1,
        order="o",
        lr=0.1,
        model={"w": torch.full((5,), float(step)), "n": torch.tensor(3)},
        optimizer={"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]},
        parts={"batchnorm": {"shares": torch.rand(2, 4, dtype=torch.float64)}},
        tally={"counts": torch.tensor([1, 2, 3]), "loss": torch.tensor(1.0)},
        rates={1: {"val_top1_error": 10.0}},
    )


def content(saved: Checkpoint, folder: Path) -> bytes:
    """The bytes of the file that it is saved in."""
    checkpoint.write(saved, folder)
    return checkpoint.read(folder / checkpoint.FILE)
