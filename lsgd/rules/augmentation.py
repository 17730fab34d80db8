"""Random crops and flips as a function of (seed, epoch, example), asked by every loader alike.

Scale and aspect-ratio augmentation as in fb.resnet.torch, which Goyal et al. 2017 name in section
5.1: a window of 8 to 100 % of the area and an aspect of 3/4 to 4/3, ten tries, then the centred
square. Colour jitter and lighting are off, since the paper names neither.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

WINDOW, FLIP, SHIFT = 1, 2, 3
"""Last words of the counter: each kind of draw has numbers of its own."""

AREA = (0.08, 1.0)
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
TRIES = 10
RESIZE = 256 / 224
"""Validation images are resized to this many times the crop: short side 256 for 224 pixels."""


def crop_windows(
    image_sizes: NDArray[np.int64], examples: NDArray[np.int64], *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """One window per image as (left, top, width, height) in pixels, shape (images, 4).

    `image_sizes` holds (width, height) of each image as stored, shape (images, 2).
    """
    tries = np.arange(TRIES)
    u_area, u_aspect, u_left, u_top = philox.uniforms(
        (np.asarray(examples)[:, None], epoch, tries[None, :], WINDOW), key=seed
    )  # each (images, tries)
    sizes = np.asarray(image_sizes, dtype=np.int64)
    image_width, image_height = sizes[:, :1], sizes[:, 1:]
    area = image_width * image_height * (AREA[0] + (AREA[1] - AREA[0]) * u_area)
    aspect = np.exp(LOG_ASPECT[0] + (LOG_ASPECT[1] - LOG_ASPECT[0]) * u_aspect)
    width = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    height = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (width > 0) & (width <= image_width) & (height > 0) & (height <= image_height)
    left = np.floor(u_left * (image_width - width + 1)).astype(np.int64)
    top = np.floor(u_top * (image_height - height + 1)).astype(np.int64)
    first = np.argmax(fits, axis=1)
    drawn = np.stack((left, top, width, height), axis=-1)[np.arange(len(sizes)), first]
    return np.where(fits.any(axis=1)[:, None], drawn, centred_squares(sizes))


def centred_squares(image_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest centred square of each image as (left, top, width, height), shape (images, 4)."""
    side = image_sizes.min(axis=1, keepdims=True)
    return np.concatenate(((image_sizes - side) // 2, side, side), axis=1)


def centre_regions(image_sizes: NDArray[np.int64], side: int) -> NDArray[np.float64]:
    """What of each image is evaluated: (left, top, width, height) in its pixels, (images, 4).

    Resized to `side` x `side` that is the centre crop after the short side was resized to 256/224
    of `side`; the long side is then a whole number of pixels, rounded down as torchvision does.
    """
    short = image_sizes.min(axis=1, keepdims=True)
    resized = round(side * RESIZE) * image_sizes // short
    corner = np.rint((resized - side) / 2)
    scale = image_sizes / resized
    return np.concatenate((corner * scale, side * scale), axis=1)


def flips(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Whether each image is mirrored left to right (probability 1/2), shape (images,)."""
    mirrored: NDArray[np.bool_] = philox.uniforms((examples, epoch, 0, FLIP), key=seed)[0] < 0.5
    return mirrored


def shifts(
    examples: NDArray[np.int64], padding: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Top-left corners (top, left), each 0 … 2·padding, of crops of padded images: (images, 2)."""
    draws = philox.uniforms((examples, epoch, 0, SHIFT), key=seed)[:2]
    return np.floor(draws * (2 * padding + 1)).astype(np.int64).T
