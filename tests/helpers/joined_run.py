"""Training runs in processes that already share a communicator: one launch makes many runs."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from helpers.composed import compose_recipe
from lsgd.comm import Comm
from lsgd.errors import DivergedError, PreemptedError
from lsgd.job.preemption import SIGNALS
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.train import train
from lsgd.workloads.images import ImageClassification


class NaNLossImages(ImageClassification):
    """An image workload in which the loss is NaN for one example in the second epoch."""

    def loss(self, model: Any, batch: Any, each: Any) -> Any:
        loss, counts = super().loss(model, batch, each)
        return (loss * torch.nan if each.epoch == 1 and 5 in each.examples else loss), counts


def step_with_signal(step: int, number: signal.Signals) -> Callable[..., None]:
    """Return a replacement of train_step that sends this process a signal before a given step."""

    def step_or_end(learner: Learner, task: StepTask, *rest: Any) -> None:
        if task.step == step:
            os.kill(os.getpid(), number)
        train_step(learner, task, *rest)

    return step_or_end


def compose_once(comm: Comm, folder: Path, *words: str) -> Recipe:
    """Return the recipe of these overrides in a run folder, composed by process 0 for all.

    Otherwise each process would take a tenth of a CPU second for it.
    """
    recipe = comm.broadcast_object(compose_recipe(*words) if comm.rank == 0 else None)
    assert recipe
    return replace(recipe, run_dir=str(folder))


def train_with_comm(
    comm: Comm, recipe: Recipe, put: dict[str, Any], begin_with: Path | None = None
) -> str:
    """Train the recipe with an open communicator; return the error of an early end, or ''.

    `put` replaces objects by their import paths. The run resumes a copy of the run folder
    `begin_with`.
    """
    if begin_with and comm.rank == 0:
        shutil.copytree(begin_with, str(recipe.run_dir), symlinks=True)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with ExitStack() as stack:
        stack.enter_context(patch("lsgd.train.joined", lambda *_: nullcontext(comm)))
        for name, value in put.items():
            stack.enter_context(patch(name, value))
        try:
            train(recipe)
        except (DivergedError, PreemptedError) as early:
            return f"{type(early).__name__}: {early}"
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return ""


def write_ends(comm: Comm, out: Path, ends: dict[str, str]) -> None:
    """Write ends.json with the early ends of runs, by name, of all processes of the job."""
    ends_by_process = comm.gather_objects(ends)
    if comm.rank == 0:
        (out / "ends.json").write_text(json.dumps(ends_by_process))


def early_ends(out: Path, name: str) -> set[str]:
    """Return the distinct early ends of a run on the processes of a job, from ends.json."""
    return {each[name] for each in json.loads((out / "ends.json").read_text())}
