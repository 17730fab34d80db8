"""Where images come from: every loader gives what the sampler asks for, in its order."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd import paths
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.sampler import Pass

Batch = tuple[Tensor, Tensor]
"""Images (images, channels, height, width), normalised, and their labels (images,)."""

IN_MEMORY = ("digits", "fashion-mnist", "cifar10")


class Inputs(Protocol):
    """A dataset behind a loader."""

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass in turn, cropped and flipped as augmentation has it."""

    def validation(self, chunks: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """The images of the validation set with these ids, chunk by chunk."""


def open_inputs(recipe: Recipe, device: torch.device) -> Inputs:
    """The loader that the recipe asks for, its dataset checked against the recipe's numbers.

    Raises Refused where the dataset is not, or is not what the recipe says.
    """
    data, loader = recipe.data, recipe.inputs.loader
    root = Path(data.root) if data.root else paths.data_root(data.name)
    match loader if loader != "auto" else choose_loader(data.name):
        case "synthetic":
            from lsgd.inputs.synthetic import SyntheticInputs

            return SyntheticInputs(data, seed=recipe.seed, device=device)
        case "memory":
            if data.name not in IN_MEMORY:
                raise Refused(
                    f"inputs=memory holds {', '.join(IN_MEMORY)} and not {data.name}; "
                    "write inputs=torchvision"
                )
            from lsgd.inputs.memory import MemoryInputs

            return MemoryInputs(data, root, seed=recipe.seed, device=device)
        case "torchvision":
            if data.name in IN_MEMORY:
                raise Refused(
                    f"inputs=torchvision reads image folders and {data.name} is not one; "
                    "write inputs=memory"
                )
            from lsgd.inputs.torchvision import FolderInputs

            return FolderInputs(
                data, root, recipe.inputs, seed=recipe.seed, pins=device.type == "cuda"
            )
    raise ValueError(loader)


def choose_loader(dataset: str) -> str:
    """What inputs=auto means: small datasets in memory, image folders through torchvision."""
    return "memory" if dataset in IN_MEMORY else "torchvision"
