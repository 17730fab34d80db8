"""How much memory a loader holds, epoch after epoch: one that leaks ends a run after days."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from lsgd.bench.fresh import in_fresh_process
from lsgd.bench.loaders import consume, passes_of_step
from lsgd.comm import open_comm
from lsgd.inputs import open_inputs
from lsgd.job.device import pick_device
from lsgd.recipe import Recipe

LIMIT = 6 * 3600.0
"""Seconds of an epoch after which a loader is given up; ImageNet needs 2 hours of two cores."""


def resident_after_epochs(recipe: Recipe, loader: str, epochs: int) -> list[int]:
    """Bytes that a process with this loader, and its children, hold in RAM after each epoch.

    An epoch is the training and the validation images, all of them. The process is a fresh one, so
    that nothing else is counted. Raises Refused if it dies or takes too long.
    """
    one = replace(recipe, inputs=replace(recipe.inputs, loader=loader))
    return in_fresh_process(epochs * LIMIT, _load_epochs, one, epochs)


def resident(process: int) -> int:
    """Bytes in RAM of a process and all its children; what they share counts for each."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended in the meantime
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


def _load_epochs(recipe: Recipe, epochs: int) -> list[int]:
    device = pick_device(recipe.device)
    open_comm(replace(recipe.comm, library="single"), device)  # for the number of threads
    inputs = open_inputs(recipe, device)
    ids = np.arange(recipe.data.val_examples)
    chunks = np.split(ids, range(recipe.val_batch, len(ids), recipe.val_batch))
    steps = recipe.steps_per_epoch
    found = []
    for epoch in range(epochs):
        of_epoch = range(epoch * steps, (epoch + 1) * steps)
        consume(
            inputs.train(each for step in of_epoch for each in passes_of_step(recipe, step)), device
        )
        consume(inputs.validation(chunks), device)
        found.append(resident(os.getpid()))
        print(
            f"{recipe.inputs.loader}, epoch {epoch + 1} of {epochs}: {found[-1] / 2**20:.0f} MiB",
            file=sys.stderr,
            flush=True,
        )
    return found
