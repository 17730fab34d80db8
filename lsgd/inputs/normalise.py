"""From 8-bit pixels to what a network is given."""

import torch
from torch import Tensor

from lsgd.recipe import Data

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class Normalise:
    """(pixel / 255 - mean) / std per channel, on the device."""

    def __init__(self, data: Data, *, dtype: str, device: torch.device) -> None:
        self.device, self.dtype = device, DTYPES[dtype]
        self.mean = 255 * torch.tensor(data.mean, device=device)[:, None, None]
        self.scale = 1 / (255 * torch.tensor(data.std, device=device)[:, None, None])

    def __call__(self, images: Tensor) -> Tensor:
        """Of 8-bit images (images, channels, height, width), in their memory format."""
        pixels = images.to(self.device, non_blocking=True).float()
        return pixels.sub_(self.mean).mul_(self.scale).to(self.dtype)
