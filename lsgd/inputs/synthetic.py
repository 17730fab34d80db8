"""A data loader of random images in the dataset's shape, which needs no data."""

from collections.abc import Iterable, Iterator

import torch

from lsgd.inputs import Batch, Inputs
from lsgd.inputs.pixels import resize
from lsgd.job.device import arrays_to_device
from lsgd.recipe import Data
from lsgd.rules.sampler import MicroBatch

DISTINCT_IMAGES = 64
"""The number of distinct images; example i is image i mod 64, so memory is constant."""


class SyntheticInputs(Inputs):
    """A data loader of random images in a dataset's shape; equal example ids have equal images."""

    def __init__(self, data: Data, *, seed: int, device: torch.device) -> None:
        self.name = "made-up images"
        generator = torch.Generator().manual_seed(seed)
        shape = (DISTINCT_IMAGES, data.channels, data.image_size, data.image_size)
        # On the device, so that a benchmark measures the training and not the loader.
        self.images = torch.randn(shape, generator=generator).to(device)
        self.resized: dict[int, torch.Tensor] = {}
        self.classes = data.classes
        self.train_examples = data.train_examples
        self.repeats = data.balance == "sampler"

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield the random images and labels of each micro-batch, without augmentation."""
        for each in passes:
            repeats = self.repeats and each.split == "train"
            examples = each.examples % self.train_examples if repeats else each.examples
            ids = arrays_to_device(examples, self.images.device)
            yield self._images(each.side)[ids % DISTINCT_IMAGES], ids % self.classes

    def _images(self, side: int) -> torch.Tensor:
        """Return all distinct images, resized to another side unless it is 0."""
        if not side:
            return self.images
        if side not in self.resized:
            self.resized = {side: resize(self.images, side)}  # one size at a time
        return self.resized[side]
