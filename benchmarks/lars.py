"""Benchmark of the cost of LARS: `python -m benchmarks.lars`."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.command import as_command
from benchmarks.comparison import Comparison, StepFunction, compare, step_of
from lsgd.comm import Comm
from lsgd.errors import UsageError
from lsgd.inputs import Batch
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.strategy import StepTask
from lsgd.strategy.allreduce import AllReduce

WITH, WITHOUT = "a step with LARS", "a step with SGD"
UPDATES = {WITH: "the update of LARS alone", WITHOUT: "the update of SGD alone"}


def update_of(learner: Learner) -> StepFunction:
    """Return a step function that only runs the learner's optimizer on its current gradients.

    Raises UsageError if the strategy has no optimizer over the whole model.
    """
    if not isinstance(learner.strategy, AllReduce):
        raise UsageError(
            f"strategy={learner.recipe.strategy.name} makes other updates than all-reduce; leave "
            "it out"
        )
    optimizer = learner.strategy.optimizer

    def update(task: StepTask, batches: Iterator[Batch]) -> None:
        optimizer.step()

    return update


def make_steps(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, StepFunction]:
    """Return a whole step and an update alone, by the recipe's LARS and by PyTorch's fused SGD.

    Raises UsageError if the recipe has another optimizer.
    """
    if recipe.optim.name != "lars":
        raise UsageError(f"optim.name={recipe.optim.name} is not LARS; write optim=lars")
    sgd = replace(recipe.optim, name="sgd", equation=9, momentum_correction=False)
    learners = {
        WITH: Learner(recipe, comm, device),
        WITHOUT: Learner(replace(recipe, optim=sgd), comm, device),
    }
    steps = {name: step_of(learner) for name, learner in learners.items()}
    return steps | {UPDATES[name]: update_of(learner) for name, learner in learners.items()}


LARS = Comparison(
    name="lars",
    about="""\
What does LARS cost? A whole training step of lsgd, against the same step with PyTorch's fused SGD;
and the update of either alone. Images are made up, and on the device already.

  python -m benchmarks.lars +recipe=bs256 optim=lars workers=1
  python -m benchmarks.lars +recipe=digits optim=lars
""",
    measured_step=WITH,
    baseline_step=WITHOUT,
    max_time_ratio=1.03,
    make_steps=make_steps,
)


main = as_command(partial(compare, LARS))

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
