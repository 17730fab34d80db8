"""An augmentation that mirrors images left to right."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.parts import uniforms


class Mirror:
    """Mirror each training image with this probability."""

    def __init__(self, *, seed: int, probability: float = 0.5) -> None:
        self.seed, self.probability = seed, probability

    def augment(self, images: Tensor, examples: NDArray[np.int64], epoch: int) -> Tensor:
        """Return the images, some of them mirrored: a function of (seed, epoch, example)."""
        draws = uniforms(examples, seed=self.seed, epoch=epoch)[0]
        mirrored = torch.from_numpy(draws < self.probability).to(images.device)
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)
