"""Random crops, flips and colours as functions of (seed, epoch, example), for every loader.

Scale and aspect-ratio augmentation are those of Goyal et al. 2017, section 5.1: a window of 8 to
100 % of the area and an aspect ratio of 3/4 to 4/3, ten tries, then the centred square, as in
fb.resnet.torch, to which that section refers (its first commit multiplied the width and divided the
height by such a number, so that the aspect ratio was its square). The colours are those of
fb.resnet.torch too; the paper does not name them.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox
from lsgd.rules.rectangles import rectangle

WINDOW, FLIP, SHIFT, JITTER, LIGHTING, POLICY, ERASE = 1, 2, 3, 9, 10, 14, 15
"""The last element of the counter for each kind of draw; others are used by other modules."""

PARTS = ("shift", "crop", "flip", "rand_augment", "trivial_augment", "colour", "erasing")
"""The parts of an augmentation, in the order in which they are applied."""
POLICIES = ("rand_augment", "trivial_augment")
"""The parts that torchvision draws and applies, from a seed for each example."""
NAMED = {
    "none": (),
    "shift_flip": ("shift", "flip"),
    "crop_flip": ("crop", "flip"),
    "fb_resnet_torch": ("crop", "flip", "colour"),
}
"""The parts of the augmentations that have a name."""

AREA = (0.08, 1.0)
"""The default range of a random crop's share of the area."""
ASPECT = (3 / 4, 4 / 3)
"""The default range of a random crop's width over its height."""
MAX_TRIES = 10
CROP_RATIO = 224 / 256
"""The default ratio of a validation crop to the resized short side: 224 pixels of 256."""

ERASED_AREA = (0.02, 0.33)
"""The range of an erased window's share of the area."""
ERASED_ASPECT = (1 / 3.3, 1 / 0.3)
"""The range of an erased window's width over its height; torchvision has it the other way."""
JITTER_RANGE = 0.4
"""The maximum deviation from 1 of the factors of brightness, contrast and saturation."""
GREY = np.array([0.299, 0.587, 0.114])
"""The weights of red, green and blue in a pixel's grey value."""
LIGHTING_STD = 0.1
"""The standard deviation of lighting, in units of EIGENVALUES along EIGENVECTORS."""
EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
EIGENVECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
"""The eigenvectors, as columns, of the covariance of ImageNet's RGB pixels in [0, 1]."""
IDENTITY_COLOURS = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
"""The row of colour_transforms for an image whose colours do not change."""


def crop_windows(
    image_sizes: NDArray[np.int64],
    examples: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    area_range: Sequence[float] = AREA,
    aspect_range: Sequence[float] = ASPECT,
) -> NDArray[np.int64]:
    """Draw a random crop window for each image; return (left, top, width, height) in pixels.

    The result has shape (images, 4). `image_sizes` holds the (width, height) of each image as
    stored, shape (images, 2). The share of the area is uniform in its range, and so is the
    logarithm of the aspect ratio.
    """
    sizes = np.asarray(image_sizes, dtype=np.int64)
    counter = (np.asarray(examples)[:, None], epoch, np.arange(MAX_TRIES)[None, :], WINDOW)
    windows, fits = _first_fits(sizes, sizes, area_range, aspect_range, counter, seed)
    return np.where(fits[:, None], windows, centred_squares(sizes))


def _first_fits(
    sizes: NDArray[np.int64],
    largest: NDArray[np.int64],
    area_range: Sequence[float],
    aspect_range: Sequence[float],
    counter: tuple[Any, ...],
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Draw windows of random area and aspect; return the first of each image that fits, and if any.

    `sizes` holds the (width, height) of each image, and `largest` that of the largest window, each
    (images, 2); `counter` has the shape (images, tries). The windows are (left, top, width,
    height), shape (images, 4).
    """
    u_area, u_aspect, u_left, u_top = philox.uniforms(counter, key=seed)  # each (images, tries)
    image_width, image_height = sizes[:, :1], sizes[:, 1:]
    least, most = area_range
    area = image_width * image_height * (least + (most - least) * u_area)
    narrow, wide = map(math.log, aspect_range)
    aspect = np.exp(narrow + (wide - narrow) * u_aspect)
    width = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    height = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (width > 0) & (width <= largest[:, :1]) & (height > 0) & (height <= largest[:, 1:])
    left = np.floor(u_left * (image_width - width + 1)).astype(np.int64)
    top = np.floor(u_top * (image_height - height + 1)).astype(np.int64)
    first = np.argmax(fits, axis=1)
    windows = np.stack((left, top, width, height), axis=-1)
    return windows[np.arange(len(sizes)), first], fits.any(axis=1)


def parts_of(kind: str) -> tuple[str, ...]:
    """Return the parts of an augmentation, given by its name or as a list; one's own has none.

    >>> parts_of("crop_flip"), parts_of("[crop,trivial_augment]")
    (('crop', 'flip'), ('crop', 'trivial_augment'))
    """
    if kind.startswith("["):
        return tuple(name.strip() for name in kind.strip("[]").split(",") if name.strip())
    return NAMED.get(kind, ())


def parts_in_epoch(kind: str, epoch: int | None, augmented_epochs: int | None) -> tuple[str, ...]:
    """Return the parts of an augmentation that an epoch uses; an evaluation, of epoch None, none.

    `augmented_epochs` is the number of epochs with augmentation, or None for all.
    """
    is_used = epoch is not None and (augmented_epochs is None or epoch < augmented_epochs)
    return parts_of(kind) if is_used else ()


def policy_of(parts: Sequence[str]) -> str | None:
    """Return the one of an augmentation's parts that torchvision draws, or None."""
    return next((part for part in parts if part in POLICIES), None)


def centred_squares(image_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest centred square of each image: (left, top, width, height), (images, 4)."""
    side = image_sizes.min(axis=1, keepdims=True)
    return np.concatenate(((image_sizes - side) // 2, side, side), axis=1)


def evaluation_crops(
    image_sizes: NDArray[np.int64], side: int, crop_ratio: float = CROP_RATIO, aspect: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each validation image's resized (width, height) and its crop's (left, top) in it.

    Both have the shape (images, 2). The short side is resized to `side` / `crop_ratio` and the long
    side rounded down to whole pixels, as in torchvision. The crop is the centred rectangle of this
    side and aspect ratio, which may exceed the image: then its corner is negative.
    """
    short = image_sizes.min(axis=1, keepdims=True)
    resized = round(side / crop_ratio) * image_sizes // short
    return resized, np.rint((resized - rectangle(side, aspect)) / 2).astype(np.int64)


def evaluation_regions(
    image_sizes: NDArray[np.int64], side: int, crop_ratio: float = CROP_RATIO, aspect: float = 0.0
) -> NDArray[np.float64]:
    """Return the centre region of each validation image: (left, top, width, height), (images, 4).

    It is the region that, resized to the rectangle of `side` and `aspect`, equals the crop of
    evaluation_crops.
    """
    resized, corner = evaluation_crops(image_sizes, side, crop_ratio, aspect)
    scale = image_sizes / resized
    return np.concatenate((corner * scale, np.array(rectangle(side, aspect)) * scale), axis=1)


def flip_mask(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.bool_]:
    """Draw for each image whether it is mirrored left to right, with probability 1/2.

    The result has shape (images,).
    """
    mirrored: NDArray[np.bool_] = philox.uniforms((examples, epoch, 0, FLIP), key=seed)[0] < 0.5
    return mirrored


def crop_corners(
    examples: NDArray[np.int64], padding: int, *, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Draw the random crop corner (top, left) of each padded image, shape (images, 2).

    Both coordinates are in 0 … 2·padding.
    """
    draws = philox.uniforms((examples, epoch, 0, SHIFT), key=seed)[:2]
    return np.floor(draws * (2 * padding + 1)).astype(np.int64).T


def colour_transforms(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """Draw a random colour transform for each image, for pixels in [0, 1], shape (images, 6).

    The first three numbers multiply a pixel, its grey value and the mean grey of the image; their
    sum plus the last three numbers is the new red, green and blue. This equals fb.resnet.torch,
    which blends the image with black (brightness), with its mean grey (contrast) and with its own
    grey (saturation), where the factor is the share of the image, and then adds lighting. The order
    of the three blends is random there, without effect: each is linear, as nothing is clamped in
    between, and any two commute, since a grey image is its own grey and the mean of an image is
    that of its grey.
    """
    brightness, contrast, saturation = jitter_factors(examples, seed=seed, epoch=epoch).T
    mixed = (
        brightness * contrast * saturation,
        brightness * contrast * (1 - saturation),
        brightness * (1 - contrast),
    )
    return np.concatenate(
        (np.stack(mixed, 1), lighting_offsets(examples, seed=seed, epoch=epoch)), 1
    )


def jitter_factors(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """Draw random factors for each image's brightness, contrast and saturation, (images, 3)."""
    draws = philox.uniforms((examples, epoch, 0, JITTER), key=seed)[:3]
    factors: NDArray[np.float64] = (1 + JITTER_RANGE * (2 * draws - 1)).T
    return factors


def lighting_offsets(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """Draw the random RGB offset (lighting) of each image's pixels in [0, 1], shape (images, 3)."""
    u = philox.uniforms((examples, epoch, 0, LIGHTING), key=seed)
    radius, angle = np.sqrt(-2 * np.log(1 - u[:2])), 2 * np.pi * u[2:]  # Box and Muller 1958
    normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:3]
    first, second, third = LIGHTING_STD * EIGENVALUES[:, None] * normal
    # The last digits of a matrix product would depend on the number of images.
    red, green, blue = (a * first + b * second + c * third for a, b, c in EIGENVECTORS)
    return np.stack((red, green, blue), axis=1)


def policy_seeds(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.uint64]:
    """Draw for each image the seed from which torchvision draws its policy, shape (images,)."""
    high, low, *_ = philox.uint32_blocks((examples, epoch, 0, POLICY), key=seed)
    seeds: NDArray[np.uint64] = (high << np.uint64(32)) | low
    return seeds


def erased_windows(
    side: int, examples: NDArray[np.int64], *, probability: float, seed: int, epoch: int
) -> NDArray[np.int64]:
    """Draw the window of each image to erase: (left, top, right, bottom) in pixels, (images, 4).

    It is empty for images that stay whole. A window has 2 to 33 % of the area and an aspect ratio
    of 0.3 to 3.3, as in Zhong et al. 2017 and torchvision's RandomErasing; of ten tries the first
    that fits is taken, and none if none does.
    """
    sizes = np.full((len(examples), 2), side)
    counter = (np.asarray(examples)[:, None], epoch, np.arange(MAX_TRIES)[None, :], ERASE)
    windows, fits = _first_fits(sizes, sizes - 1, ERASED_AREA, ERASED_ASPECT, counter, seed)
    chance = philox.uniforms((examples, epoch, MAX_TRIES, ERASE), key=seed)[0]
    corners = np.concatenate((windows[:, :2], windows[:, :2] + windows[:, 2:]), axis=1)
    return np.where((fits & (chance < probability))[:, None], corners, 0)
