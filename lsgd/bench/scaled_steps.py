"""Training steps shared by the processes of a job, which `python -m lsgd.bench scaling` measures.

`python -m lsgd.bench.scaled_steps` is one of these processes, as lsgd.bench.job_process runs them.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from lsgd.bench.job_process import main
from lsgd.comm import Comm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.recipe import InputsSettings, Recipe
from lsgd.recipe.checks import check_world_size
from lsgd.step import train_step

STRONG, WEAK = "strong", "weak"


class ScaledSteps:
    """A benchmark's assignment that makes training steps under strong or weak scaling.

    STRONG divides the recipe's workers among the processes, WEAK gives each process as many.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.candidates: Mapping[str, Callable[[int], None]] = {}

    def prepare(self, setting: str) -> dict[str, Any]:
        """Build the model for a kind of scaling, or raise UsageError for too many processes."""
        self.candidates = {}  # frees the previous model first
        factor = self.comm.world_size if setting == WEAK else 1
        recipe = replace(self.recipe, workers=factor * self.recipe.workers)
        check_world_size(recipe, self.comm.world_size)
        # An epoch of one step suffices, since the images are synthetic.
        recipe = replace(
            recipe,
            data=replace(recipe.data, train_examples=recipe.batch_size),
            inputs=InputsSettings(loader="synthetic"),
            tail="drop",
        )
        learner = Learner(recipe, self.comm, self.device)
        inputs = SyntheticInputs(recipe.data, seed=recipe.seed, device=self.device)
        [task] = learner.strategy.tasks(0, [0])
        batches = list(inputs.train(task.micro_batches))

        def steps(number: int) -> None:
            for _ in range(number):
                train_step(learner, task, iter(batches))

        steps(1)  # not measured, since only the first one allocates and compiles
        self.candidates = {setting: steps}
        return {
            "over": self.comm.library,
            "threads": torch.get_num_threads(),
            "images": recipe.batch_size,
            "workers_per_pass": max(len(each.workers) for each in task.micro_batches),
        }


if __name__ == "__main__":
    raise SystemExit(main(ScaledSteps, sys.argv[1:]))
