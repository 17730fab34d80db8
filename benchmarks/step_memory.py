"""The memory of steps, measured in the process that makes them (a member: lsgd.bench.member).

benchmarks.memory starts it as `python -m benchmarks.step_memory`, a fresh process for each number.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from lsgd.bench.member import main
from lsgd.comm import Comm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step


class StepMemory:
    """An Assignment whose setting is the passes of a step, and whose candidate makes steps."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.candidates: Mapping[str, Callable[[int], int]] = {"steps": self.make_steps}

    def prepare(self, setting: int) -> None:
        """Make the model, and plan a step of `setting` passes."""
        workers = setting * self.recipe.pass_workers
        # No more examples than needed: the order of a whole ImageNet would be the peak.
        data = replace(self.recipe.data, train_examples=workers * self.recipe.worker_batch)
        recipe = replace(self.recipe, workers=workers, data=data)
        self.learner = Learner(recipe, self.comm, self.device)
        [self.task] = self.learner.strategy.tasks(0, [0])
        assert len(self.task.passes) == setting
        self.inputs = SyntheticInputs(data, seed=recipe.seed, device=self.device)

    def make_steps(self, number: int) -> int:
        """Make steps; returns the bytes that this process has needed at most."""
        for _ in range(number):
            train_step(self.learner, self.task, self.inputs.train(self.task.passes))
        self.learner.strategy.settle()
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resident_peak()


def resident_peak() -> int:
    """Bytes that this process has had in RAM at most."""
    # Not getrusage, which goes on from the peak of the process that this one was forked from.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    raise SystemExit(main(StepMemory, sys.argv[1:]))
