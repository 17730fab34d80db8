"""The memory that a loader holds, epoch after epoch: a leak ends a run after days.

`python -m lsgd.bench.resident` is the measured process, a member of a job (lsgd.bench.member).
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lsgd.bench.job import open_job
from lsgd.bench.loaders import consume, passes_of_step
from lsgd.bench.member import main
from lsgd.comm import Comm
from lsgd.inputs import open_inputs
from lsgd.recipe import Recipe
from lsgd.workloads import open_workload

LIMIT = 6 * 3600.0
"""Seconds of an epoch after which a loader is given up; ImageNet needs 2 hours of two cores."""


def resident_after_epochs(words: Sequence[str], loader: str, epochs: int) -> list[int]:
    """Bytes that a process with this loader, and its children, hold in RAM after each epoch.

    An epoch is the training and the validation images, all of them, of the recipe of these words.
    The process is a fresh one, so that nothing else is counted. Raises Refused if it dies or an
    epoch takes too long.
    """
    sizes = []
    with open_job("lsgd.bench.resident", "single", 1, words, limit=LIMIT) as job:
        job.prepare(loader)
        for epoch in range(epochs):
            sizes.append(job.run("epoch", epoch))
            print(
                f"{loader}, epoch {epoch + 1} of {epochs}: {sizes[-1] / 2**20:.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
    return sizes


def resident(process: int) -> int:
    """Bytes in RAM of a process and all its children; what they share counts for each."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended in the meantime
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


class LoadedEpochs:
    """An Assignment whose setting is the name of a loader, and whose candidate loads an epoch."""

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.candidates: Mapping[str, Callable[[int], int]] = {"epoch": self.load}

    def prepare(self, setting: str) -> None:
        """Open the loader; raises Refused if it is not installed."""
        recipe = replace(self.recipe, inputs=replace(self.recipe.inputs, loader=setting))
        self.inputs = open_inputs(recipe, self.device)

    def load(self, epoch: int) -> int:
        """Load all images of an epoch; returns the bytes that are in RAM afterwards."""
        recipe, device = self.recipe, self.device
        evaluation = open_workload(recipe, device).evaluation("val", rank=0, world_size=1)
        of_epoch = range(recipe.first_step(epoch), recipe.first_step(epoch + 1))
        passes = (each for step in of_epoch for each in passes_of_step(recipe, step))
        consume(self.inputs.train(passes), device)
        consume(self.inputs.evaluation(evaluation), device)
        return resident(os.getpid())


if __name__ == "__main__":
    raise SystemExit(main(LoadedEpochs, sys.argv[1:]))
