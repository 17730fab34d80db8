"""A data loader of small image datasets, which are stored and cropped as tensors on the device."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lsgd.errors import UsageError
from lsgd.inputs import Batch, ExampleColumns
from lsgd.inputs.arrays import load_arrays
from lsgd.inputs.pixels import Normalise, resize
from lsgd.inputs.policy import AugmentationPolicy
from lsgd.job.device import arrays_to_device, to_device_together
from lsgd.recipe import Data
from lsgd.rules import augmentation
from lsgd.rules.augmentation import policy_of
from lsgd.rules.sampler import MicroBatch

PADDING = 4
"""Pixels of black padding around an image before it is shifted (He et al. 2016, section 4.2)."""


class MemoryInputs:
    """A data loader of a small image dataset held as 8-bit pixels in the device's memory."""

    def __init__(self, data: Data, root: Path, *, seed: int, device: torch.device) -> None:
        parts = augmentation.parts_of(data.augmentation)
        if {"crop", "colour"} & {*parts}:
            raise UsageError(
                f"data.augmentation={data.augmentation} is for image folders; write shift_flip or "
                f"none for {data.name}"
            )
        self.name = "in memory"
        train, validation = load_arrays(data, root)
        self.train_images = torch.from_numpy(np.ascontiguousarray(train.images)).to(device)
        self.train_labels = torch.from_numpy(train.labels).to(device)
        self.val_images = torch.from_numpy(np.ascontiguousarray(validation.images)).to(device)
        self.val_labels = torch.from_numpy(validation.labels).to(device)
        self.normalise = Normalise(data, device)
        self.augmentation, self.augmented_epochs = data.augmentation, data.augmented_epochs
        self.policy = AugmentationPolicy(data) if policy_of(parts) else None
        self.seed = seed
        self.repeats = data.balance == "sampler"

    def columns(self) -> ExampleColumns:
        """Return the labels and pixels of all training and validation images, by column name."""
        held = {
            "train labels": self.train_labels,
            "train pixels": self.train_images,
            "val labels": self.val_labels,
            "val pixels": self.val_images,
        }
        return {name: values.cpu().numpy() for name, values in held.items()}

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield each training micro-batch's images, augmented per recipe, and labels."""
        for each in passes:
            count = len(self.train_labels)
            numbers = [each.examples % count if self.repeats else each.examples]
            parts = augmentation.parts_in_epoch(
                self.augmentation, each.epoch, self.augmented_epochs
            )
            draw = {"seed": self.seed, "epoch": each.epoch or 0}
            if {"shift", "flip"} & {*parts}:
                numbers += self._places(each.examples, parts, **draw)
            ids, *places = to_device_together(
                [torch.from_numpy(array) for array in numbers], self.train_labels.device
            )
            images = self.train_images[ids]
            if places:
                images = _moved(images, *places)
            if self.policy and policy_of(parts):
                seeds = augmentation.policy_seeds(each.examples, **draw)
                images = torch.stack(list(map(self.policy.apply, images, seeds)))
            if each.side:
                images = resize(images.float(), each.side)
            yield self.normalise(images), self.train_labels[ids]

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield images and labels of each evaluation micro-batch, without augmentation."""
        for each in passes:
            ids = arrays_to_device(each.examples, self.val_labels.device)
            images = self.val_images[ids]
            if each.side:
                images = resize(images.float(), each.side)
            yield self.normalise(images), self.val_labels[ids]

    def _places(
        self, examples: NDArray[np.int64], parts: tuple[str, ...], **draw: int
    ) -> list[NDArray[np.int64]]:
        """Draw shifts and flips; return the rows and columns of padded pixels that they select.

        Both have the shape (images, side).
        """
        side = self.train_images.shape[-1]
        corners = np.full((len(examples), 2), PADDING)
        if "shift" in parts:
            corners = augmentation.crop_corners(examples, PADDING, **draw)
        read = np.broadcast_to(np.arange(side), (len(examples), side))
        if "flip" in parts:
            flips = augmentation.flip_mask(examples, **draw)
            read = np.where(flips[:, None], np.arange(side)[::-1], np.arange(side))
        return [corners[:, :1] + np.arange(side), corners[:, 1:] + read]


def _moved(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Shift and flip images by gathering the given rows and columns of their padded pixels."""
    padded = F.pad(images, (PADDING,) * 4)
    each_image = torch.arange(len(images), device=images.device)[:, None, None]
    # Indices on both sides of the channels make torch put the channels last.
    return padded[each_image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
