"""Small datasets held as 8-bit tensors on the device, cropped and normalised there."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lsgd.errors import Refused
from lsgd.inputs import Batch
from lsgd.inputs.arrays import load_arrays
from lsgd.inputs.normalise import Normalise
from lsgd.inputs.sending import sent
from lsgd.recipe import Data
from lsgd.rules import augmentation
from lsgd.rules.sampler import Pass

PADDING = 4
"""Pixels of black around an image before it is shifted (He et al. 2016, section 4.2)."""


class MemoryInputs:
    """A small dataset that lies in memory as 8-bit pixels, on the device."""

    def __init__(self, data: Data, root: Path, *, seed: int, device: torch.device) -> None:
        if data.augmentation in augmentation.OF_FILES:
            raise Refused(
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
        self.shifts = data.augmentation == "shift_flip"
        self.seed = seed

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, shifted and flipped where the recipe says so."""
        for each in passes:
            ids = sent(each.examples, self.train_labels.device)
            images = self.train_images[ids]
            if self.shifts and each.epoch is not None:
                images = self._shift_flip(images, each.examples, each.epoch)
            yield self.normalise(images), self.train_labels[ids]

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, as they are."""
        for each in passes:
            ids = sent(each.examples, self.val_labels.device)
            yield self.normalise(self.val_images[ids]), self.val_labels[ids]

    def _shift_flip(self, images: Tensor, examples: NDArray[np.int64], epoch: int) -> Tensor:
        device, side = images.device, images.shape[-1]
        corners = augmentation.shifts(examples, PADDING, seed=self.seed, epoch=epoch)
        flips = augmentation.flips(examples, seed=self.seed, epoch=epoch)
        rows = sent(corners[:, :1] + np.arange(side), device)
        read = np.where(flips[:, None], np.arange(side)[::-1], np.arange(side))
        columns = sent(corners[:, 1:] + read, device)
        padded = F.pad(images, (PADDING,) * 4)
        each_image = torch.arange(len(images), device=device)[:, None, None]
        # Indexing around the channels puts them last.
        return padded[each_image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
