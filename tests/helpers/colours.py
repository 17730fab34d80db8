"""What fb.resnet.torch makes of colours, one step after the other, for comparison."""

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from helpers.folders import SEED
from lsgd.rules import augmentation

STEPS = ("brightness", "contrast", "saturation")
ORDERS = list(permutations(STEPS))

Image = NDArray[np.float64]
"""An image (height, width, 3) of red, green and blue in [0, 1], or beyond once it was changed."""


def grey(image: Image) -> Image:
    return 0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2]


def blend(image: Image, other: Image | float, share: float) -> Image:
    return share * image + (1 - share) * other


def jittered(image: Image, factors: dict[str, float], order: tuple[str, ...] = STEPS) -> Image:
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
    """An image with the jitter and the lighting of this example, in an order of its own."""
    draw = {"seed": seed, "epoch": epoch}
    factors = augmentation.jitters(np.array([example]), **draw)[0].tolist()
    (light,) = augmentation.lightings(np.array([example]), **draw)
    order = ORDERS[(example + epoch) % len(ORDERS)]
    return jittered(image, dict(zip(STEPS, factors, strict=True)), order) + light
