"""Checkpoints for tests: of a few real steps, and a synthetic one with all kinds of content."""

from pathlib import Path

import torch

from helpers.composed import compose_recipe
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.folder import OpenRun, open_run
from lsgd.step import train_step

CPU = torch.device("cpu")
WORDS = ["+recipe=digits", "workers=2", "worker_batch=8", "schedule.reference_batch=8"]


def recipe(*words: str) -> Recipe:
    return compose_recipe(*WORDS, *words)


def open_once(made: Recipe) -> OpenRun:
    """Open the run folder of this recipe, close it, and return what opening found."""
    with open_run(made, SingleComm()) as opened:
        return opened


def make_steps(learner: Learner, first: int, last: int) -> None:
    """Make the steps from `first` to before `last`, all in the first epoch."""
    tasks = list(learner.strategy.tasks(0, list(range(first, last))))
    batches = learner.workload.inputs().train(each for task in tasks for each in task.micro_batches)
    for task in tasks:
        train_step(learner, task, batches)


def learner_after(made: Recipe, first: int, last: int) -> Learner:
    """Return a new learner of this recipe that has made the steps from `first` to before `last`."""
    learner = Learner(made, SingleComm(), CPU)
    make_steps(learner, first, last)
    return learner


def tiny(step: int = 3) -> Checkpoint:
    """Return a small synthetic checkpoint with every kind of value that one may contain."""
    return Checkpoint(
        recipe={"name": "a", "milestones": [1, 2.5], "root": None},
        fingerprint="f" * 8,
        step=step,
        epoch=1,
        order="o",
        lr=0.1,
        model={"w": torch.full((5,), float(step)), "n": torch.tensor(3)},
        optimizer={
            "state": {0: {"momentum_buffer": torch.ones(2), "bounds": (torch.ones(1), 2)}},
            "param_groups": [{"lr": 0.1}],
        },
        parts={"batchnorm": {"shares": torch.rand(2, 4, dtype=torch.float64)}},
        tally={"counts": torch.tensor([1, 2, 3]), "loss": torch.tensor(1.0)},
        rates={1: {"val_top1_error": 10.0}},
    )


def content(saved: Checkpoint, folder: Path) -> bytes:
    """Write the checkpoint to a folder and return the bytes of its file."""
    checkpoint.write(saved, folder)
    return checkpoint.read(folder / checkpoint.FILE)
