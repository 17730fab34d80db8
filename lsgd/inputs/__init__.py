"""Data loaders of images, which yield the batches of the sampler's micro-batches in their order."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from lsgd.errors import UsageError
from lsgd.inputs.arrays import IN_MEMORY_DATASETS as IN_MEMORY_DATASETS
from lsgd.inputs.arrays import load_arrays
from lsgd.inputs.index import SPLITS, ImageIndex, index_file, open_evaluation_index, open_indexes
from lsgd.installation import install_command
from lsgd.job.launcher import cores, detect_launch
from lsgd.own_parts import LOADER, OwnPart, imported_part, is_import_path, refusing_errors
from lsgd.recipe import Data, InputsSettings, Recipe
from lsgd.recipe.fields import AUTO
from lsgd.rules import augmentation
from lsgd.rules.sampler import MicroBatch

if TYPE_CHECKING:
    # For types only: modules that need just the index, such as lsgd.prepare, start without torch.
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

Batch: TypeAlias = "tuple[Tensor, Tensor]"
"""Normalised images (images, channels, height, width) and their labels (images,)."""

ExampleColumns: TypeAlias = "dict[str, NDArray[Any]]"
"""Metadata of the examples as arrays with one value for each example, by column name.

The first word of a name, such as `train labels`, is the split.
"""


class Inputs(Protocol):
    """The interface of data loaders, which yield one batch for each requested micro-batch in order.

    The workload's loss defines the type of a batch; image workloads use Batch.
    """

    name: str
    """The name of the loader in the log."""

    def columns(self) -> ExampleColumns:
        """Return metadata columns of all examples (names, labels, sizes) to compare dataset copies.

        A loader that derives from this class returns an empty dict by default, as do those of
        synthetic examples.
        """
        return {}

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Load and yield the examples of each training micro-batch in order, with augmentation."""

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Load and yield the examples of each evaluation micro-batch in order, unaugmented.

        A loader that derives from this class yields them by `train` by default, which tells them
        from training micro-batches by their epoch, None.
        """
        return self.train(passes)


def prefetch_limit(recipe: Recipe) -> int:
    """Return how many micro-batches a recipe's data loader may prefetch beyond the current one.

    The number depends on this machine's cores and on whether DALI is installed. For a loader or a
    workload of the user's own it is inputs.prefetch.
    """
    settings = recipe.inputs
    if settings.is_own or recipe.data.is_own_workload:
        return settings.prefetch
    if settings.loader in ("memory", "synthetic") or recipe.data.name in IN_MEMORY_DATASETS:
        return 0
    if recipe.data.workload != "images":
        return 0
    decoders = settings.decoders if settings.decoders is not None else cores(detect_launch())
    is_torchvision = settings.loader == "torchvision" or _has_policy(recipe.data)
    if is_torchvision or not is_dali_installed():
        return decoders * settings.prefetch
    from lsgd.inputs.dali import READ_AHEAD

    return READ_AHEAD + settings.prefetch + 1


def indexed_class_names(recipe: Recipe) -> list[str]:
    """Read the names of a recipe's classes, by label, from the index of its image folder.

    The list is empty for data without an index, such as synthetic or downloaded arrays.
    """
    data = recipe.data
    if data.workload != "images" or recipe.inputs.loader == "synthetic":
        return []
    folder = Path(data.index) if data.index else data.folder
    names: list[str] = []
    # The validation index is the smaller one, but may lack classes.
    for split in ("val", "train"):
        file = index_file(folder, split)
        if len(names) < data.classes and file.is_file():
            names = ImageIndex(folder, file).classes()
    return names


class Augmentation(Protocol):
    """The interface of an augmentation of training images, on the device of the training."""

    def augment(self, images: "Tensor", examples: "NDArray[np.int64]", epoch: int) -> "Tensor":
        """Return the changed images (images, channels, height, width), which are normalised.

        Each is a function of its pixels, its example and the epoch, and not of other images.
        """


def training_labels(recipe: Recipe) -> "NDArray[np.int64]":
    """Read the labels of all training images of a recipe, by example id.

    Raises UsageError if the dataset is missing or differs from the recipe.
    """
    data = recipe.data
    if recipe.inputs.loader == "synthetic":
        return np.arange(data.train_examples) % data.classes
    if data.name in IN_MEMORY_DATASETS:
        return load_arrays(data, data.folder)[0].labels
    index, _ = open_indexes(data, data.folder)
    return index.labels(np.arange(len(index)))


def evaluation_set_size(recipe: Recipe, name: str) -> int:
    """Return the number of images of an evaluation set, by its index if it is not val.

    Raises UsageError if the set is missing.
    """
    data = recipe.data
    if name == "val" or recipe.inputs.loader == "synthetic":
        return data.val_examples
    return len(open_evaluation_index(data, data.folder, name))


def has_evaluation_set(recipe: Recipe, name: str) -> bool:
    """Return whether a recipe's images have this evaluation set beside val, by its index.

    Synthetic images have any.
    """
    data, settings = recipe.data, recipe.inputs
    if data.workload != "images" or data.name in IN_MEMORY_DATASETS or settings.is_own:
        return False
    folder = Path(data.index) if data.index else data.folder
    return settings.loader == "synthetic" or index_file(folder, name).is_file()


def evaluated_image_sizes(recipe: Recipe, name: str) -> "NDArray[np.int64]":
    """Read the stored (width, height) of all images of an evaluation set from its index, by id.

    Synthetic images are squares. Raises UsageError if the set is missing, and InputFailedError if
    the index lacks the size of an image.
    """
    data = recipe.data
    if recipe.inputs.loader == "synthetic":
        return np.full((data.val_examples, 2), data.image_size)
    root = data.folder
    _, val = open_indexes(data, root)
    index = val if name == "val" else open_evaluation_index(data, root, name)
    return index.sizes(np.arange(len(index)))


def open_inputs(recipe: Recipe, device: "torch.device") -> Inputs:
    """Open the data loader of a recipe and check its dataset's counts against those of the recipe.

    Raises UsageError if the dataset is missing or differs from the recipe.
    """
    inputs = _open_at_one_size(recipe, device)
    if "erasing" in augmentation.parts_of(recipe.data.augmentation):
        from lsgd.inputs.wrapped import AugmentedInputs, RandomErasing

        inputs = AugmentedInputs(inputs, RandomErasing(recipe.data, seed=recipe.seed))
    if not recipe.changes_image_sizes:
        return inputs
    from lsgd.inputs.wrapped import SizedInputs

    return SizedInputs(inputs, recipe)


def _open_at_one_size(recipe: Recipe, device: "torch.device") -> Inputs:
    """Open a recipe's data loader, with images of data.image_size unless a micro-batch has another.

    Raises UsageError if the dataset is missing or differs from the recipe.
    """
    if is_import_path(recipe.data.augmentation):
        from lsgd.inputs.wrapped import AugmentedInputs, open_augmentation

        own = open_augmentation(recipe, device)
        plain = replace(recipe.data, augmentation="none")
        return AugmentedInputs(_open_at_one_size(replace(recipe, data=plain), device), own)
    data, settings, loader = recipe.data, recipe.inputs, recipe.inputs.loader
    if loader == "auto":
        loader = (
            "memory"
            if data.name in IN_MEMORY_DATASETS
            else "dali"
            if is_dali_installed() and not _has_policy(data)
            else "torchvision"
        )
    _check_kind(recipe, loader, device)
    if settings.is_own:
        return _open_own(recipe, device)
    if loader == "synthetic":
        from lsgd.inputs.synthetic import SyntheticInputs

        return SyntheticInputs(data, seed=recipe.seed, device=device)
    if loader == "memory":
        from lsgd.inputs.memory import MemoryInputs

        return MemoryInputs(data, data.folder, seed=recipe.seed, device=device)
    return _open_folder(recipe, device, loader)


def _open_folder(recipe: Recipe, device: "torch.device", loader: str) -> Inputs:
    """Open the torchvision or DALI loader of an image folder with all its evaluation sets."""
    data, settings = recipe.data, recipe.inputs
    root = data.folder
    indexes = dict(zip(SPLITS, open_indexes(data, root), strict=True))
    for name in recipe.evaluation.sets[1:]:
        indexes[name] = open_evaluation_index(data, root, name)
    decoders = settings.decoders if settings.decoders is not None else cores(detect_launch())
    if loader == "dali":
        from lsgd.inputs.dali import DaliInputs

        largest_batch = max(_largest_micro_batch(recipe), recipe.val_batch)
        return DaliInputs(recipe, indexes, device, decoders, largest_batch)
    from lsgd.inputs.torchvision import FolderInputs

    folder = FolderInputs(recipe, indexes, device, decoders)
    if settings.loader == "auto" and not _has_policy(data):
        folder.name += f" (DALI is faster: {install_command('dali')})"
    return folder


def _open_own(recipe: Recipe, device: "torch.device") -> Inputs:
    """Open a loader of the user's own; raises UsageError if it fails or yields other batches.

    Two validation examples are loaded, to see what a batch is; a run also tries training ones.
    """
    data, settings = recipe.data, recipe.inputs
    part = imported_part(LOADER, settings.loader, settings.source)
    if len(sets := recipe.evaluation.sets) > 1:
        raise UsageError(
            f"evaluation.sets has {sets[1]}, and {part.override} has images of train and val "
            "alone; write evaluation.sets=[val]"
        )
    made: Inputs = part(settings.options, data=data, seed=recipe.seed, device=device)
    val = MicroBatch(None, np.arange(min(2, data.val_examples)), range(0), 0, "val")
    _check_batch(made.evaluation, part, val, data, data.image_size)
    with refusing_errors(f"{part.override} fails in columns"):
        columns = {name: len(column) for name, column in made.columns().items()}
    for name, count in columns.items():
        split = name.partition(" ")[0]
        expected = {"train": data.train_examples, "val": data.val_examples}.get(split, count)
        if count != expected:
            raise UsageError(
                f"{part.override} has {count} {name}, and this recipe has data.{split}_examples="
                f"{expected}; write the number that it has"
            )
    if not getattr(made, "name", None):
        made.name = part.path
    return made


def try_own_training(inputs: Inputs, recipe: Recipe) -> None:
    """Raise UsageError unless a loader of the user's own yields training images of a worker."""
    part = imported_part(LOADER, recipe.inputs.loader, recipe.inputs.source)
    ids = np.arange(min(2, recipe.worker_batch, recipe.data.train_examples))
    train = MicroBatch(0, ids, range(1), 0, "train")
    _check_batch(inputs.train, part, train, recipe.data, recipe.training_size(0))


def _check_batch(
    load: Callable[[list[MicroBatch]], Iterator[Batch]],
    part: OwnPart,
    each: MicroBatch,
    data: Data,
    side: int,
) -> None:
    """Raise UsageError unless a loader of the user's own yields a micro-batch of images."""
    count = len(each.examples)
    examples = f"{count} {'training' if each.split == 'train' else 'validation'} examples"
    with refusing_errors(f"{part.override} fails on the first {examples}"):
        images, labels = next(iter(load([each])))
        found = [tuple(images.shape), tuple(labels.shape)]
    if found != (wanted := [(count, data.channels, side, side), (count,)]):
        raise UsageError(
            f"{part.override} yields a batch of shapes {found[0]} and {found[1]} for {examples}, "
            f"and this recipe has {wanted[0]} and {wanted[1]}; fix it, or write the data.channels "
            "and data.image_size that it has"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise UsageError(
            f"{part.override} yields labels of {labels.dtype}, and a label is a class number; "
            "yield integers, such as those of labels.long()"
        )


def _largest_micro_batch(recipe: Recipe) -> int:
    """Return the largest number of images that one micro-batch of training can hold.

    workers_per_pass=auto is decided after the loader is open, so it counts as all workers: DALI
    allocates memory by the actual size of the micro-batches.
    """
    if recipe.workers_per_pass == AUTO:
        return max(stage.batch_size for stage in recipe.stages)
    n = max(stage.worker_batch for stage in recipe.stages)
    return recipe.micro_batch_workers * n


def _has_policy(data: Data) -> bool:
    """Return whether the augmentation has a policy, which DALI cannot apply from given draws."""
    return augmentation.policy_of(augmentation.parts_of(data.augmentation)) is not None


def is_dali_installed() -> bool:
    """Return whether NVIDIA DALI is installed."""
    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def _setting_of_files(recipe: Recipe) -> str:
    """Return a setting of image folders that does not apply to arrays in memory, or ""."""
    data, settings, evaluation = recipe.data, recipe.inputs, recipe.evaluation
    ratios = {images.crop_ratio for _, images in recipe.evaluated_changes}
    found = {
        "data.skip": data.skip,
        f"data.index={data.index}": data.index,
        f"inputs.decoders={settings.decoders}": settings.decoders,
        f"inputs.decode_on={settings.decode_on}": settings.decode_on != "auto",
        (of_dali := _settings_of_dali(settings)): of_dali,
        f"data.crop_ratio={data.crop_ratio:g}": data.crop_ratio != augmentation.CROP_RATIO,
        "a crop_ratio in evaluation.image_sizes": ratios - {augmentation.CROP_RATIO},
        f"evaluation.rectangle_batch={evaluation.rectangle_batch}": evaluation.rectangle_batch,
        f"{', '.join(evaluation.sets[1:])} in evaluation.sets": evaluation.sets[1:],
    }
    return next((setting for setting, is_given in found.items() if is_given), "")


def _settings_of_dali(settings: InputsSettings) -> str:
    """Return a setting of decoding on a GPU that changes something, or an empty string.

    A share of 0, which a preset of hardware sets, is that of any other loader.
    """
    if settings.decode_on == "gpu":
        return "inputs.decode_on=gpu"
    if settings.hardware_share not in (0, InputsSettings().hardware_share):
        return f"inputs.hardware_share={settings.hardware_share:g}"
    return ""


def _check_image_files(data: Data, loader: str) -> None:
    """Raise UsageError if a loader of image files cannot read this dataset or augment it so."""
    if data.name in IN_MEMORY_DATASETS:
        raise UsageError(
            f"inputs={loader} reads image folders, and {data.name} is not one; write inputs=memory"
        )
    parts = augmentation.parts_of(data.augmentation)
    if "shift" in parts:
        raise UsageError(
            f"data.augmentation={data.augmentation} shifts, which is for small images in "
            f"memory; write crop_flip, fb_resnet_torch, none or parts of these for {data.name}"
        )
    if data.channels not in (1, 3):
        raise UsageError(
            f"data.channels={data.channels}, and image files give 3 or, as grey, 1; write "
            "data.channels=3 or data.channels=1"
        )
    if data.channels == 1 and ("colour" in parts or _has_policy(data)):
        raise UsageError(
            f"data.augmentation={data.augmentation} changes colours, which images of "
            "data.channels=1 do not have; write data.augmentation=crop_flip"
        )
    if loader == "dali" and _has_policy(data):
        raise UsageError(
            f"data.augmentation={data.augmentation} has a policy of torchvision, which DALI "
            "cannot apply from given draws; write inputs=torchvision"
        )


def _check_kind(recipe: Recipe, loader: str, device: "torch.device") -> None:
    """Raise UsageError if a data loader is not installed or not for this dataset or device."""
    data, settings = recipe.data, recipe.inputs
    if settings.dtype != "float32" and loader != "dali":
        raise UsageError(
            f"inputs.dtype={settings.dtype} is for DALI, and this run uses inputs={loader}; "
            "write inputs.dtype=float32, or inputs=dali"
        )
    if loader == "memory" and data.name not in IN_MEMORY_DATASETS:
        raise UsageError(
            f"inputs=memory holds {', '.join(IN_MEMORY_DATASETS)} and not {data.name}; write "
            "inputs=auto"
        )
    if loader == "memory" and (unread := _setting_of_files(recipe)):
        raise UsageError(f"{unread} is for image folders, which {data.name} is not; leave it out")
    # A share of the GPU's decoder is a hint where inputs=auto may choose DALI on another machine.
    chosen = settings.loader == loader or settings.decode_on == "gpu"
    if loader == "torchvision" and chosen and (unread := _settings_of_dali(settings)):
        raise UsageError(
            f"{unread} is for DALI, and this run uses inputs=torchvision; leave it out, or write "
            "inputs=dali"
        )
    if settings.decode_on == "gpu":
        from lsgd.job.device import is_nvidia

        if not is_nvidia(device):
            raise UsageError(
                f"inputs.decode_on=gpu, but this run is on the {device.type.upper()}; write "
                "device=cuda on a machine with an NVIDIA GPU, or inputs.decode_on=cpu"
            )
    if loader in ("dali", "torchvision"):
        _check_image_files(data, loader)
    if loader == "dali" and not is_dali_installed():
        raise UsageError(
            f"inputs=dali, but DALI is not installed; run {install_command('dali')}, or write "
            "inputs=torchvision"
        )
