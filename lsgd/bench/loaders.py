"""The loaders under comparison: lsgd's, a plain DataLoader and DALI's reader, on the same files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, RandomSampler

from lsgd.bench.setting import check_measurable, check_not_launched
from lsgd.bench.timing import TimedWork
from lsgd.comm import Comm, open_comm
from lsgd.errors import UsageError
from lsgd.inputs import IN_MEMORY_DATASETS, Batch, Inputs, open_inputs
from lsgd.inputs.index import ImageIndex, open_indexes
from lsgd.inputs.staging import with_staged_data
from lsgd.job.device import needs_pinned_memory, pick_device, synchronize
from lsgd.job.launcher import cores, detect_launch
from lsgd.recipe import Recipe
from lsgd.recipe.settings import ImageSizes
from lsgd.rules import sampler
from lsgd.rules.sampler import MicroBatch
from lsgd.vision import datasets, transforms

DALI, TORCHVISION = "ours, DALI", "ours, torchvision"
PLAIN, DALI_READER = "plain DataLoader", "DALI's reader"

Loader = Callable[[int], Iterable[Batch]]
"""A function that yields the batches of a round, given its number, and then has none in flight."""


@dataclass(frozen=True)
class LoaderSetting:
    """The settings that all compared data loaders share."""

    recipe: Recipe
    device: torch.device
    comm: Comm
    root: Path
    index: ImageIndex
    """The index of the training images."""
    decoders: int
    """The number of threads or processes that decode."""

    @property
    def batch(self) -> int:
        """The number of images in a micro-batch of the compared loaders."""
        stage = self.recipe.stage(0)
        return min(self.recipe.micro_batch_workers, stage.workers) * stage.worker_batch


@dataclass(frozen=True)
class Loaders:
    """The opened data loaders by name, and the reasons why others could not be opened."""

    alone: dict[str, Loader]
    ours: dict[str, Inputs]
    missing: dict[str, str] = field(default_factory=dict)


def loader_setting(recipe: Recipe) -> LoaderSetting:
    """Return the settings for comparing a recipe's data loaders, which need image files.

    With data.stage they read the copy on this machine, which is made if it is missing. Raises
    UsageError for a recipe without image files, and if a launcher started several processes.
    """
    check_measurable(recipe)
    if recipe.rehearse or recipe.data.name in IN_MEMORY_DATASETS:
        what = "a dry run" if recipe.rehearse else recipe.data.name
        raise UsageError(
            f"{what} has no image files to load; write for example recipe=bs256 data.root=FOLDER"
        )
    if recipe.data.channels != 3:
        raise UsageError(
            f"data.channels={recipe.data.channels} is not loaded by the other libraries that this "
            "benchmark compares; leave it out"
        )
    check_not_launched("the loaders of one are compared")
    recipe = _with_one_size(with_staged_data(recipe))
    root = recipe.data.folder
    index, _ = open_indexes(recipe.data, root)
    decoders = recipe.inputs.decoders
    device = pick_device(recipe.device)
    return LoaderSetting(
        recipe=recipe,
        device=device,
        # Opened as in training, since it sets torch's number of threads.
        comm=open_comm(replace(recipe.comm, library="single"), device),
        root=root,
        index=index,
        decoders=cores(detect_launch()) if decoders is None else decoders,
    )


def _with_one_size(recipe: Recipe) -> Recipe:
    """Return the recipe with the first epoch's image size throughout, at which all are compared."""
    data = replace(recipe.data, image_size=recipe.training_size(0))
    evaluation = replace(recipe.evaluation, image_sizes=[], rectangle_batch=0)
    return replace(recipe, data=data, image_sizes=ImageSizes(), evaluation=evaluation)


def open_loaders(common: LoaderSetting, *, rounds: int, batches: int) -> Loaders:
    """Open every installed data loader, to load `rounds` rounds of `batches` batches."""
    opened: dict[str, Inputs] = {}
    missing: dict[str, str] = {}
    try:
        opened[DALI] = _open(common, "dali")
    except UsageError as refusal:
        missing[DALI] = missing[DALI_READER] = str(refusal)
    opened[TORCHVISION] = _open(common, "torchvision")
    plan = plan_batches(common.recipe, rounds, batches)
    alone = {name: planned_loader(inputs, plan) for name, inputs in opened.items()}
    if common.index.in_shards():
        why = f"it reads image files, and {common.root} has tar shards"
        return Loaders(alone, opened, missing | {PLAIN: why, DALI_READER: why})
    alone[PLAIN] = plain_dataloader(common, batches)
    if DALI_READER not in missing:
        from lsgd.bench.dali_reader import dali_reader

        try:
            alone[DALI_READER] = dali_reader(common, batches)
        except UsageError as refusal:
            missing[DALI_READER] = str(refusal)
    return Loaders(alone, opened, missing)


def planned_loader(inputs: Inputs, plan: list[list[MicroBatch]]) -> Loader:
    """Return a function that loads a round's planned micro-batches with a loader of lsgd."""
    return lambda number: inputs.train(plan[number])


def plain_dataloader(common: LoaderSetting, batches: int) -> Loader:
    """Return a loader by PyTorch's DataLoader and torchvision's ImageFolder, as in tutorials."""
    data, decoders, device = common.recipe.data, common.decoders, common.device
    dataset = _Folder(
        common.root / "train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(
                    data.image_size, scale=data.crop_area, ratio=data.crop_aspect, antialias=True
                ),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(data.mean, data.std),
            ]
        ),
    )
    left_out = {str(common.root / path) for path in data.skip}
    dataset.samples = [sample for sample in dataset.samples if sample[0] not in left_out]
    generator = torch.Generator().manual_seed(common.recipe.seed)
    pinned = needs_pinned_memory(device)
    loader: DataLoader[Batch] = DataLoader(
        dataset,
        batch_size=common.batch,
        # shuffle=True, but a round may be more or less than an epoch.
        sampler=RandomSampler(dataset, num_samples=common.batch * batches, generator=generator),
        num_workers=decoders,
        prefetch_factor=common.recipe.inputs.prefetch if decoders else None,
        persistent_workers=decoders > 0,
        pin_memory=pinned,
        # A fork while DALI's threads run may hang.
        multiprocessing_context="forkserver" if decoders else None,
    )

    def batches_of_round(number: int) -> Iterator[Batch]:
        for images, labels in loader:
            yield images.to(device, non_blocking=pinned), labels

    return batches_of_round


class _Folder(datasets.ImageFolder):  # type: ignore[misc]
    """torchvision's ImageFolder, as a class whose import in a process imports lsgd.vision too."""


def plan_batches(recipe: Recipe, rounds: int, batches: int) -> list[list[MicroBatch]]:
    """Return the micro-batches of a run from its first step on, in rounds of `batches` each."""
    passes: list[MicroBatch] = []
    step = 0
    while len(passes) < rounds * batches:
        passes += micro_batches_of_step(recipe, step)
        step += 1
    return [passes[number * batches : (number + 1) * batches] for number in range(rounds)]


def micro_batches_of_step(recipe: Recipe, step: int) -> list[MicroBatch]:
    """Return the micro-batches of a step of the run on a single process."""
    epoch, step_of_epoch = recipe.locate_step(step)
    stage = recipe.stage(epoch)
    return sampler.step_micro_batches(
        _order(recipe.data.train_examples, recipe.seed, epoch),
        epoch=epoch,
        step=step_of_epoch,
        workers=stage.workers,
        worker_batch=stage.worker_batch,
        hosted=range(stage.workers),
        workers_per_pass=recipe.micro_batch_workers,
    )


@lru_cache(maxsize=1)
def _order(examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return sampler.epoch_order(examples, seed=seed, epoch=epoch)


def timed_work(loader: Loader, device: torch.device) -> TimedWork:
    """Return a function that loads a whole round of batches with a loader, for timing."""
    return lambda number: consume(loader(number), device)


def consume(batches: Iterable[Batch], device: torch.device) -> int:
    """Load every batch of images, wait for the device and return the number of images."""
    images = 0
    for pixels, labels in batches:
        pixels[:, 0, 0, 0].sum()  # reads a value of each image, so that all are loaded
        images += len(labels)
    synchronize(device)
    return images


def _open(common: LoaderSetting, loader: str) -> Inputs:
    recipe = common.recipe
    return open_inputs(replace(recipe, inputs=recipe.inputs.with_loader(loader)), common.device)
