"""Loaders of images: each yields what the sampler asks for, in the sampler's order."""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lsgd import paths
from lsgd.errors import Refused
from lsgd.inputs.index import open_indexes
from lsgd.installation import install
from lsgd.job.launcher import cores, detect
from lsgd.recipe import Data, InputsSettings, Recipe
from lsgd.recipe.fields import AUTO
from lsgd.rules.sampler import Pass

if TYPE_CHECKING:
    # For types only: what needs just the index, as lsgd.prepare does, starts without torch.
    import torch
    from torch import Tensor

Batch: TypeAlias = "tuple[Tensor, Tensor]"
"""Images (images, channels, height, width), normalised, and their labels (images,)."""

IN_MEMORY = ("digits", "fashion-mnist", "cifar10")


class Inputs(Protocol):
    """A dataset behind a loader; one round of training or evaluation at a time.

    A batch is what the workload's loss takes; of images it is a Batch.
    """

    name: str
    """The name of the loader, in words for the log."""

    def train(self, passes: Iterable[Pass]) -> Iterator[Any]:
        """The batch of each training pass in turn, augmented as the recipe says."""

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Any]:
        """The batch of each pass over an evaluation set in turn, with the examples as they are."""


def passes_ahead(recipe: Recipe) -> int:
    """How many passes the loader of a recipe may ask for beyond the one that is computed with, on
    this machine: those that are made ready meanwhile."""
    settings = recipe.inputs
    if settings.loader in ("memory", "synthetic") or recipe.data.name in IN_MEMORY:
        return 0
    if recipe.data.workload != "images":
        return 0
    decoders = settings.decoders if settings.decoders is not None else cores(detect())
    if settings.loader == "torchvision" or not _has_dali():
        return decoders * settings.prefetch
    from lsgd.inputs.dali import AHEAD

    return AHEAD + settings.prefetch + 1


def open_inputs(recipe: Recipe, device: "torch.device") -> Inputs:
    """The loader that the recipe asks for, its dataset checked against the recipe's numbers.

    Raises Refused if the dataset is missing, or is not what the recipe says.
    """
    data, settings = recipe.data, recipe.inputs
    root = Path(data.root) if data.root else paths.data_root(data.name)
    loader = settings.loader
    if loader == "auto":
        loader = "memory" if data.name in IN_MEMORY else "dali" if _has_dali() else "torchvision"
    _check_kind(data, settings, loader, device)
    match loader:
        case "synthetic":
            from lsgd.inputs.synthetic import SyntheticInputs

            return SyntheticInputs(data, seed=recipe.seed, device=device)
        case "memory":
            from lsgd.inputs.memory import MemoryInputs

            return MemoryInputs(data, root, seed=recipe.seed, device=device)
    indexes = open_indexes(data, root)
    decoders = settings.decoders if settings.decoders is not None else cores(detect())
    match loader:
        case "torchvision":
            from lsgd.inputs.torchvision import FolderInputs

            folder = FolderInputs(
                data, indexes, settings, seed=recipe.seed, device=device, decoders=decoders
            )
            if settings.loader == "auto":
                folder.name += f" (DALI is faster: {install('dali')})"
            return folder
        case "dali":
            from lsgd.inputs.dali import DaliInputs

            return DaliInputs(
                data,
                indexes,
                settings,
                seed=recipe.seed,
                device=device,
                decoders=decoders,
                largest_batch=max(_most_workers(recipe) * recipe.worker_batch, recipe.val_batch),
                channels_last=recipe.channels_last,
            )
    raise ValueError(loader)


def _most_workers(recipe: Recipe) -> int:
    """The most workers whose images a pass can carry; with workers_per_pass=auto, which is found
    once the loader is there, all of them: DALI takes its memory by what passes really have."""
    if recipe.workers_per_pass == AUTO:
        return max(stage.workers for stage in recipe.stages)
    return recipe.pass_workers


def _has_dali() -> bool:
    return find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None


def _check_kind(data: Data, settings: InputsSettings, loader: str, device: "torch.device") -> None:
    """Refuse a loader that does not suit the dataset or the device, or is not installed."""
    if settings.dtype != "float32" and loader != "dali":
        raise Refused(
            f"inputs.dtype={settings.dtype} is for DALI, and here {loader} brings the images; "
            "leave it out, or write inputs=dali"
        )
    if settings.decode_on == "gpu" and device.type != "cuda":
        raise Refused(
            f"inputs.decode_on=gpu, but this run is on the {device.type.upper()}; write "
            "device=cuda where there is a GPU, or inputs.decode_on=cpu"
        )
    if loader == "memory" and data.name not in IN_MEMORY:
        raise Refused(
            f"inputs=memory holds {', '.join(IN_MEMORY)} and not {data.name}; write inputs=auto"
        )
    if loader == "memory" and data.skip:
        raise Refused(f"data.skip is for image folders, which {data.name} is not; leave it out")
    if loader in ("dali", "torchvision"):
        if data.name in IN_MEMORY:
            raise Refused(
                f"inputs={loader} reads image folders and {data.name} is not one; write "
                "inputs=memory"
            )
        if data.augmentation == "shift_flip":
            raise Refused(
                "data.augmentation=shift_flip is for small images in memory; write crop_flip, "
                f"fb_resnet_torch or none for {data.name}"
            )
        if data.channels != 3:
            raise Refused(
                f"data.channels={data.channels}, and image files give 3; write data.channels=3"
            )
    if loader == "dali" and not _has_dali():
        raise Refused(
            f"inputs=dali, but DALI is not installed; type {install('dali')}, or write "
            "inputs=torchvision"
        )
