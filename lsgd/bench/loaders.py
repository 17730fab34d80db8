"""The loaders that are compared: ours, and what one would use without lsgd, on the same files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, RandomSampler

from lsgd import paths
from lsgd.bench.setting import check_measurable, check_not_launched
from lsgd.bench.timing import TimedWork
from lsgd.comm import Comm, open_comm
from lsgd.errors import Refused
from lsgd.inputs import IN_MEMORY, Batch, Inputs, open_inputs
from lsgd.inputs.index import Index, open_indexes
from lsgd.job.device import pick_device
from lsgd.job.launcher import cores, detect
from lsgd.recipe import Recipe
from lsgd.rules import augmentation, sampler
from lsgd.rules.sampler import Pass
from lsgd.vision import datasets, transforms

DALI, TORCHVISION = "ours, DALI", "ours, torchvision"
PLAIN, READER = "plain DataLoader", "DALI's reader"

Loader = Callable[[int], Iterable[Batch]]
"""The batches of a round, given its number; after the last one nothing is under way."""


@dataclass(frozen=True)
class LoaderSetting:
    """The settings that all loaders have in common."""

    recipe: Recipe
    device: torch.device
    comm: Comm
    root: Path
    index: Index
    """The index of the training images."""
    decoders: int
    """Threads or processes that decode."""

    @property
    def batch(self) -> int:
        """The number of images of a pass."""
        return self.recipe.pass_workers * self.recipe.worker_batch


@dataclass(frozen=True)
class Loaders:
    """The loaders that could be opened, by name, and why the others could not."""

    alone: dict[str, Loader]
    ours: dict[str, Inputs]
    missing: dict[str, str] = field(default_factory=dict)


def loader_setting(recipe: Recipe) -> LoaderSetting:
    """The common settings of this recipe's loaders; raises Refused if it has no image files."""
    check_measurable(recipe)
    if recipe.rehearse or recipe.data.name in IN_MEMORY:
        what = "a rehearsal" if recipe.rehearse else recipe.data.name
        raise Refused(
            f"{what} has no image files to load; write for example +recipe=bs256 data.root=FOLDER"
        )
    check_not_launched("the loaders of one are compared")
    root = Path(recipe.data.root) if recipe.data.root else paths.data_root(recipe.data.name)
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
        decoders=cores(detect()) if decoders is None else decoders,
    )


def open_loaders(common: LoaderSetting, *, rounds: int, batches: int) -> Loaders:
    """Every loader that is installed, for `rounds` rounds of `batches` batches."""
    opened: dict[str, Inputs] = {}
    missing: dict[str, str] = {}
    try:
        opened[DALI] = _open(common, "dali")
    except Refused as refusal:
        missing[DALI] = missing[READER] = str(refusal)
    opened[TORCHVISION] = _open(common, "torchvision")
    plan = plan_batches(common.recipe, rounds, batches)
    alone = {name: requests(inputs, plan) for name, inputs in opened.items()}
    if common.index.in_shards():
        why = f"it reads image files, and {common.root} has tar shards"
        return Loaders(alone, opened, missing | {PLAIN: why, READER: why})
    alone[PLAIN] = plain_dataloader(common, batches)
    if READER not in missing:
        from lsgd.bench.dali_reader import dali_reader

        alone[READER] = dali_reader(common, batches)
    return Loaders(alone, opened, missing)


def requests(inputs: Inputs, plan: list[list[Pass]]) -> Loader:
    """A loader of ours, asked for the passes of each round as the training asks for them."""
    return lambda number: inputs.train(plan[number])


def plain_dataloader(common: LoaderSetting, batches: int) -> Loader:
    """torchvision's ImageFolder and transforms behind a DataLoader, as tutorials have it."""
    data, decoders, device = common.recipe.data, common.decoders, common.device
    dataset = _Folder(
        common.root / "train",
        transforms.Compose(
            [
                transforms.RandomResizedCrop(
                    data.image_size, scale=augmentation.AREA, ratio=(3 / 4, 4 / 3), antialias=True
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
    loader: DataLoader[Batch] = DataLoader(
        dataset,
        batch_size=common.batch,
        # shuffle=True, but a round may be more or less than an epoch.
        sampler=RandomSampler(dataset, num_samples=common.batch * batches, generator=generator),
        num_workers=decoders,
        prefetch_factor=common.recipe.inputs.prefetch if decoders else None,
        persistent_workers=decoders > 0,
        pin_memory=device.type == "cuda",
        # A fork in the midst of DALI's threads may hang.
        multiprocessing_context="forkserver" if decoders else None,
    )

    def batches_of_round(number: int) -> Iterator[Batch]:
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels

    return batches_of_round


class _Folder(datasets.ImageFolder):  # type: ignore[misc]
    """An unchanged ImageFolder; as a class of this file it makes processes import lsgd.vision."""


def plan_batches(recipe: Recipe, rounds: int, batches: int) -> list[list[Pass]]:
    """The passes of the run from its first step on, in rounds of `batches` passes."""
    passes: list[Pass] = []
    step = 0
    while len(passes) < rounds * batches:
        passes += passes_of_step(recipe, step)
        step += 1
    return [passes[number * batches : (number + 1) * batches] for number in range(rounds)]


def passes_of_step(recipe: Recipe, step: int) -> list[Pass]:
    """The passes that a single process makes in a step of the run."""
    epoch, step_of_epoch = recipe.place(step)
    workers = recipe.stage(epoch).workers
    return sampler.step_passes(
        _order(recipe.data.train_examples, recipe.seed, epoch),
        epoch=epoch,
        step=step_of_epoch,
        workers=workers,
        worker_batch=recipe.worker_batch,
        hosted=range(workers),
        workers_per_pass=recipe.pass_workers,
    )


@lru_cache(maxsize=1)
def _order(examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return sampler.epoch_order(examples, seed=seed, epoch=epoch)


def timed_work(loader: Loader, device: torch.device) -> TimedWork:
    """The work of a loader that is timed: a round, to its end."""
    return lambda number: consume(loader(number), device)


def consume(batches: Iterable[Batch], device: torch.device) -> int:
    """Take every batch when it is ready; returns the number of images, when all work is done."""
    images = 0
    for pixels, labels in batches:
        pixels[:, 0, 0, 0].sum()  # needs a value of each image, so that all are made
        images += len(labels)
    finish(device)
    return images


def finish(device: torch.device) -> None:
    """Wait until the device, if it is a GPU, has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _open(common: LoaderSetting, loader: str) -> Inputs:
    recipe = common.recipe
    return open_inputs(replace(recipe, inputs=replace(recipe.inputs, loader=loader)), common.device)
