"""The colour jitter, resizing and normalisation of a batch of pixels, on the device."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lsgd.recipe import Data
from lsgd.rules import augmentation

RED, GREEN, BLUE = augmentation.GREY.tolist()


class Normalise:
    """A function that normalises batches of images to (pixel / 255 - mean) / std per channel."""

    def __init__(self, data: Data, device: torch.device) -> None:
        self.device = device
        self.mean = 255 * torch.tensor(data.mean, device=device)[:, None, None]
        self.scale = 1 / (255 * torch.tensor(data.std, device=device)[:, None, None])
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (images, channels, height, width) of pixels of 0 to 255 as float32.

        The memory format stays. Images that are float32 on the device already are overwritten.
        """
        pixels = images.to(self.device).float()
        mean, scale, values = self.mean, self.scale, pixels
        if pixels.is_contiguous(memory_format=torch.channels_last):
            # One row with all its channels at a time: on a CPU three times as fast as pixel by
            # pixel.
            width = pixels.shape[3]
            if width not in self._rows:
                self._rows[width] = mean.flatten().repeat(width), scale.flatten().repeat(width)
            mean, scale = self._rows[width]
            values = pixels.permute(0, 2, 3, 1).view(len(pixels), pixels.shape[2], -1)
        values.sub_(mean).mul_(scale)
        return pixels


def resize(images: Tensor, side: int) -> Tensor:
    """Resize float images (images, channels, height, width) to `side`, antialiased bilinearly."""
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, (side, side), mode="bilinear", antialias=True)


def recolour(pixels: Tensor, colours: Tensor) -> None:
    """Apply given colour jitter to each image of a batch (pixels of 0 to 255) in place, unclamped.

    `pixels` is contiguous and has the shape (images, height, width, 3); `colours`, from
    augmentation.colour_transforms, has the shape (images, 6).
    """
    images, _, width, _ = pixels.shape
    own, of_grey, of_mean = colours[:, :3].T.reshape(3, images, 1, 1)
    red, green, blue = pixels.unbind(-1)
    grey = (RED * red).add_(green, alpha=GREEN).add_(blue, alpha=BLUE)
    mean = grey.mean((1, 2), keepdim=True)
    grey.mul_(of_grey).add_(of_mean * mean)
    # One row with all its channels at a time, since this is faster on a CPU.
    rows = pixels.view(images, -1, 3 * width)
    rows.mul_(own)
    pixels.add_(grey[..., None])
    rows.add_((255 * colours[:, 3:]).repeat(1, width)[:, None])
