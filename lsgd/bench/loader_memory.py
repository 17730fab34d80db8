"""The memory that a loader holds after each epoch, since a leak ends a run after days.

`python -m lsgd.bench.loader_memory` is the measured process (lsgd.bench.job_process).
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lsgd.bench.job import open_job
from lsgd.bench.job_process import main
from lsgd.bench.loaders import consume, micro_batches_of_step
from lsgd.comm import Comm
from lsgd.inputs import open_inputs
from lsgd.inputs.staging import with_staged_data
from lsgd.recipe import Recipe
from lsgd.workloads import open_workload

EPOCH_TIMEOUT = 6 * 3600.0
"""Seconds after which an epoch is aborted; ImageNet needs 2 hours on two cores."""


def resident_after_epochs(overrides: Sequence[str], loader: str, epochs: int) -> list[int]:
    """Return the bytes in RAM that a new process with this data loader has after each epoch.

    The bytes include those of its children. An epoch loads all training and validation images of
    the recipe composed from `overrides`. The process is a new one, so that only the loader counts.
    Raises UsageError if it dies or an epoch takes too long.
    """
    sizes = []
    with open_job("lsgd.bench.loader_memory", "single", 1, overrides, limit=EPOCH_TIMEOUT) as job:
        job.prepare(loader)
        for epoch in range(epochs):
            sizes.append(job.run("epoch", epoch))
            print(
                f"{loader}, epoch {epoch + 1} of {epochs}: {sizes[-1] / 2**20:.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
    return sizes


def resident_bytes(process: int) -> int:
    """Return the bytes in RAM of a process and its descendants; shared memory counts for each."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has exited meanwhile
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(
        resident_bytes(int(child)) for child in children
    )


class LoadedEpochs:
    """A benchmark's assignment that opens a data loader and loads whole epochs with it."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.candidates: Mapping[str, Callable[[int], int]] = {"epoch": self.load}

    def prepare(self, setting: str) -> None:
        """Open the data loader of this name, or raise UsageError if it is not installed."""
        recipe = replace(self.recipe, inputs=self.recipe.inputs.with_loader(setting))
        self.inputs = open_inputs(with_staged_data(recipe), self.device)

    def load(self, epoch: int) -> int:
        """Load all images of an epoch and return the bytes in RAM of this process afterwards."""
        recipe, device = self.recipe, self.device
        evaluation = open_workload(recipe, device).evaluation_micro_batches(
            "val", rank=0, world_size=1
        )
        of_epoch = range(recipe.first_step(epoch), recipe.first_step(epoch + 1))
        passes = (each for step in of_epoch for each in micro_batches_of_step(recipe, step))
        consume(self.inputs.train(passes), device)
        consume(self.inputs.evaluation(evaluation), device)
        return resident_bytes(os.getpid())


if __name__ == "__main__":
    raise SystemExit(main(LoadedEpochs, sys.argv[1:]))
