"""Training steps that the processes of a job share: what `python -m lsgd.bench scaling` measures.

`python -m lsgd.bench.scaled_steps` is one of these processes, as lsgd.bench.member runs them.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from lsgd.bench.member import main
from lsgd.comm import Comm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe.checks import check_world_size
from lsgd.step import train_step

STRONG, WEAK = "strong", "weak"


class ScaledSteps:
    """An Assignment whose setting is strong or weak, and whose candidate makes steps.

    STRONG shares the workers of the recipe out among the processes, WEAK gives each as many.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.candidates: Mapping[str, Callable[[int], None]] = {}

    def prepare(self, setting: str) -> dict[str, Any]:
        """Make the model; raises Refused if there are more processes than workers."""
        self.candidates = {}  # the former one leaves the memory first
        factor = self.comm.world_size if setting == WEAK else 1
        recipe = replace(self.recipe, workers=factor * self.recipe.workers)
        check_world_size(recipe, self.comm.world_size)
        # An epoch of one step, since what is measured is made up.
        recipe = replace(
            recipe, data=replace(recipe.data, train_examples=recipe.batch_size), tail="drop"
        )
        learner = Learner(recipe, self.comm, self.device)
        inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=self.device)
        [task] = learner.strategy.tasks(0, [0])
        batches = list(inputs.train(task.passes))

        def steps(number: int) -> None:
            for _ in range(number):
                train_step(learner, task, iter(batches))

        steps(1)  # not measured, since only the first one allocates and compiles
        self.candidates = {setting: steps}
        return {
            "over": self.comm.library,
            "threads": torch.get_num_threads(),
            "images": recipe.batch_size,
            "workers_per_pass": max(len(each.workers) for each in task.passes),
        }


if __name__ == "__main__":
    raise SystemExit(main(ScaledSteps, sys.argv[1:]))
