"""Measurement of the memory of training steps, in the process that makes them.

benchmarks.memory starts a fresh process `python -m benchmarks.step_memory` for each measurement;
lsgd.bench.job_process runs it.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from lsgd.bench.job_process import main
from lsgd.comm import Comm
from lsgd.inputs.synthetic import SyntheticInputs
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.step import train_step


class StepMemory:
    """An Assignment whose candidate makes steps of as many micro-batches as the setting says."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.comm, self.device = recipe, comm, device
        self.candidates: Mapping[str, Callable[[int], int]] = {"steps": self.make_steps}

    def prepare(self, setting: int) -> None:
        """Build the model, and plan a step of `setting` micro-batches."""
        workers = setting * self.recipe.micro_batch_workers
        # The epoch has no more examples than needed: the order of all of ImageNet would be the
        # peak.
        data = replace(self.recipe.data, train_examples=workers * self.recipe.worker_batch)
        recipe = replace(self.recipe, workers=workers, data=data)
        self.learner = Learner(recipe, self.comm, self.device)
        [self.task] = self.learner.strategy.tasks(0, [0])
        assert len(self.task.micro_batches) == setting
        self.inputs = SyntheticInputs(data, seed=recipe.seed, device=self.device)

    def make_steps(self, number: int) -> int:
        """Make `number` steps, and return this process's peak memory in bytes."""
        for _ in range(number):
            train_step(self.learner, self.task, self.inputs.train(self.task.micro_batches))
        self.learner.strategy.synchronize()
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resident_peak()


def resident_peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    # getrusage would include the peak of the process from which this one was forked.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    raise SystemExit(main(StepMemory, sys.argv[1:]))
