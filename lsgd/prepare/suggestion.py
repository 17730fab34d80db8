"""The command that trains on a folder of images in minutes on this machine, by timed steps."""

import math
import shlex
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.inputs import evaluation_set_size
from lsgd.inputs.decoding import load_image
from lsgd.inputs.index import open_indexes
from lsgd.job.device import device_name, pick_device, synchronize
from lsgd.job.system import count_usable_cores
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe.epoch_scaling import scale_epochs
from lsgd.run.remaining import duration
from lsgd.step import train_step
from lsgd.strategy import StepTask

BUDGET = 10.0
"""The minutes that the training of the suggested command may take, unless no network is faster."""
N, K = 32, 8
"""The worker batch and the number of workers of the recipe in the suggested command."""
STEPS = 10
"""The updates that an epoch should have: with fewer, 90 epochs of a small folder learn little."""
UPDATES, FEWEST_EPOCHS = 900, 30
"""The updates after which a CPU need not train all epochs of the recipe, but at least these."""
NETWORKS = (
    ("resnet20", 32),
    ("torchvision/resnet18", 64),
    ("torchvision/resnet18", 128),
    ("torchvision/resnet18", 224),
    ("resnet50", 224),
)
"""The networks with image sizes that a CPU may train, in order of time; a GPU may the last two."""
MOST_STEPS, MOST_SECONDS = 5, 3.0
"""The largest number of timed steps of a network, and the seconds after which no other is made."""
SAMPLE = 16
"""The number of images by whose size no larger image size is suggested."""


@dataclass(frozen=True)
class TimedStep:
    """The measured seconds of a training image: to read and decode it, and in the network."""

    reading: float
    """The seconds on a single core."""
    computing: float

    def minutes(self, images: int, evaluated: int, *, cores: int, on_cpu: bool) -> float:
        """Return the minutes of a run that trains on and evaluates these numbers of images.

        All cores read them. On a CPU reading and computing share the cores. An evaluated image
        takes one of the three passes of a step.
        """
        reading = self.reading * (images + evaluated) / cores
        computing = self.computing * (images + evaluated / 3)
        return (reading + computing if on_cpu else max(reading, computing)) / 60


def suggested_command(overrides: Sequence[str], train: int) -> tuple[str, str]:
    """Return the command that trains on an indexed folder, and a note on its network and minutes.

    `overrides`, quoted for a shell, name the folder, of `train` images. The network is the largest
    of NETWORKS that trains within BUDGET, by a timed step of each.
    """
    basic = ["recipe=bs256", "data=folder", *overrides, *overrides_for_size(train)]
    device = pick_device("auto")
    cores, on_cpu = count_usable_cores(), device.type == "cpu"
    place = f"{cores} core{'s' * (cores > 1)}" if on_cpu else device_name(device)
    suggested = ""
    for network, size in NETWORKS if on_cpu else NETWORKS[-2:]:
        # The recipe has the largest network and its size.
        sized = [f"model={network}"] * (network != NETWORKS[-1][0])
        sized += [f"data.image_size={size}"] * (size != NETWORKS[-1][1])
        recipe = config.load_recipe(shlex.split(" ".join([*basic, *sized])))
        if suggested and size > _usual_side(recipe):
            break
        fewest = max(FEWEST_EPOCHS, -(-UPDATES // recipe.steps_per_epoch))
        epochs = min(recipe.epochs, fewest) if on_cpu else recipe.epochs
        images = epochs * recipe.steps_per_epoch * recipe.batch_size
        evaluated = epochs * sum(evaluation_set_size(recipe, s) for s in recipe.evaluation.sets)
        minutes = timed_step(recipe).minutes(images, evaluated, cores=cores, on_cpu=on_cpu)
        if suggested and minutes > BUDGET:
            break
        suggested = " ".join([*basic, *sized, *scale_epochs(recipe, epochs)])
        note = (
            f"{network.rpartition('/')[2]} at {size} pixels, {epochs} epochs of "
            f"{recipe.steps_per_epoch:,} step{'s' * (recipe.steps_per_epoch > 1)}: about "
            f"{duration(60 * minutes)} on {place}, by a timed step"
        )
    return f"python -m lsgd.train {suggested}", note


def _usual_side(recipe: Recipe) -> float:
    """Return the median of the shorter sides of some of a recipe's training images, in pixels."""
    assert recipe.data.root
    index, _ = open_indexes(recipe.data, Path(recipe.data.root))
    sample = range(0, len(index), max(1, len(index) // SAMPLE))
    return statistics.median(min(load_image(index, example).size) for example in sample)


def overrides_for_size(train: int) -> list[str]:
    """Return overrides with which an epoch of `train` images has about STEPS updates if it can.

    The list is empty where the recipe already has that many.

    >>> overrides_for_size(24), overrides_for_size(700), overrides_for_size(2560)
    (['workers=1', 'worker_batch=24'], ['workers=2'], [])
    """
    if train < N:
        return ["workers=1", f"worker_batch={train}"]
    workers = max(1, train // (N * STEPS))
    return [f"workers={workers}"] if workers < K else []


def timed_step(recipe: Recipe) -> TimedStep:
    """Measure the time of a training image of a recipe on this machine, with a single worker.

    The fastest of the first steps counts, since the first one allocates memory, and others may
    share the machine.
    """
    inputs_settings = replace(recipe.inputs, loader="torchvision", decoders=0)
    recipe = replace(recipe, workers=1, inputs=inputs_settings)
    device = pick_device("auto")
    learner = Learner(recipe, SingleComm(), device)
    inputs = learner.workload.inputs()
    begin, reading, computing = time.perf_counter(), math.inf, math.inf
    for task in islice(_tasks(learner), MOST_STEPS):
        start = time.perf_counter()
        batches = list(inputs.train(task.micro_batches))
        read = time.perf_counter()
        train_step(learner, task, iter(batches))
        synchronize(device)
        done = time.perf_counter()
        reading, computing = min(reading, read - start), min(computing, done - read)
        if done - begin > MOST_SECONDS:
            break
    return TimedStep(reading / recipe.batch_size, computing / recipe.batch_size)


def _tasks(learner: Learner) -> Iterator[StepTask]:
    for epoch, steps in learner.remaining_epochs():
        yield from learner.strategy.tasks(epoch, steps)
