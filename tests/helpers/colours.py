"""A reference implementation of the colour jitter and lighting of fb.resnet.torch."""

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from helpers.folders import SEED
from lsgd.rules import augmentation

STEPS = ("brightness", "contrast", "saturation")
ORDERS = list(permutations(STEPS))

Image = NDArray[np.float64]
"""An RGB image (height, width, 3) with values in [0, 1], or outside after augmentation."""


def grey(image: Image) -> Image:
    return 0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]


def blend(image: Image, other: Image | float, share: float) -> Image:
    return share * image + (1 - share) * other


def colour_jitter(image: Image, factors: dict[str, float], order: tuple[str, ...] = STEPS) -> Image:
    for step in order:
        match step:
            case "brightness":
                image = blend(image, 0, factors[step])
            case "contrast":
                image = blend(image, float(grey(image).mean()), factors[step])
            case "saturation":
                image = blend(image, grey(image)[..., None], factors[step])
    return image


def coloured(image: Image, example: int, epoch: int, *, seed: int = SEED) -> Image:
    """Return the image with the colour jitter and lighting drawn for this example and epoch."""
    draw = {"seed": seed, "epoch": epoch}
    factors = augmentation.jitter_factors(np.array([example]), **draw)[0].tolist()
    (light,) = augmentation.lighting_offsets(np.array([example]), **draw)
    order = ORDERS[(example + epoch) % len(ORDERS)]
    return colour_jitter(image, dict(zip(STEPS, factors, strict=True)), order) + light
