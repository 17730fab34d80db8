"""Made-up images of the dataset's shape, to run anything without data."""

from collections.abc import Iterable, Iterator

import torch

from lsgd.inputs import Batch
from lsgd.inputs.sending import sent
from lsgd.recipe import Data
from lsgd.rules.sampler import Pass

BANK = 64
"""Different images; example i is image i mod 64, so any number of examples costs no memory."""


class SyntheticInputs:
    """Made-up images of the dataset's shape, the same for each id."""

    def __init__(self, data: Data, *, seed: int, device: torch.device) -> None:
        self.name = "made-up images"
        generator = torch.Generator().manual_seed(seed)
        shape = (BANK, data.channels, data.image_size, data.image_size)
        # On the device, so that what is measured is training and not this.
        self.images = torch.randn(shape, generator=generator).to(device)
        self.classes = data.classes

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The made-up images of each pass; nothing is drawn anew."""
        for each in passes:
            ids = sent(each.examples, self.images.device)
            yield self.images[ids % BANK], ids % self.classes

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The same images again."""
        return self.train(passes)
