"""A loader of images in two .npz files, which erases a random square of each training image."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.parts import Data, MicroBatch, UsageError, uniforms


class NpzLoader:
    """Read the images and labels of data.root/train.npz and val.npz into memory."""

    name = "npz files"

    def __init__(self, data: Data, *, seed: int, device: torch.device, erased: int = 2) -> None:
        self.device, self.seed, self.erased = device, seed, erased
        self.sets: dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]] = {}
        for split in ("train", "val"):
            file = Path(data.root or ".") / f"{split}.npz"
            if not file.is_file():
                raise UsageError(f"data.root={data.root} has no {file.name}; write its folder")
            with np.load(file) as arrays:
                mean, std = np.array(data.mean), np.array(data.std)
                pixels = (arrays["images"] - mean[:, None, None]) / std[:, None, None]
                self.sets[split] = pixels.astype(np.float32), arrays["labels"].astype(np.int64)

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return what identifies the examples, so that all processes have the same."""
        return {f"{split} labels": labels for split, (_, labels) in self.sets.items()}

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images of each micro-batch with an erased square, and their labels."""
        for each in passes:
            all_images, all_labels = self.sets["train"]
            images, labels = all_images[each.examples], all_labels[each.examples]
            if each.epoch is not None:
                images = self._erase(images, each.examples, each.epoch)
            yield torch.from_numpy(images).to(self.device), torch.from_numpy(labels).to(self.device)

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images and labels of each micro-batch of validation images as they are."""
        for each in passes:
            images, labels = (array[each.examples] for array in self.sets["val"])
            yield torch.from_numpy(images).to(self.device), torch.from_numpy(labels).to(self.device)

    def _erase(
        self, images: NDArray[np.float32], examples: NDArray[np.int64], epoch: int
    ) -> NDArray[np.float32]:
        """Set a square to 0 whose place is a function of (seed, epoch, example)."""
        draws = uniforms(examples, seed=self.seed, epoch=epoch)
        tops, lefts = (draws[:2] * (images.shape[-1] - self.erased + 1)).astype(int)
        for image, top, left in zip(images, tops, lefts, strict=True):
            image[:, top : top + self.erased, left : left + self.erased] = 0
        return images
