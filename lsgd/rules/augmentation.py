"""Random crops, flips and colours as a function of (seed, epoch, example), asked by every loader.

Scale and aspect-ratio augmentation as Goyal et al. 2017 have it in section 5.1: a window of 8 to
100 % of the area and an aspect of 3/4 to 4/3, ten tries, then the centred square. (The code of
fb.resnet.torch, to which that section refers, multiplies the width and divides the height by such a
number, so that there the aspect is its square.) The colours are those of fb.resnet.torch; the paper
does not name them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from lsgd.rules import philox

WINDOW, FLIP, SHIFT, JITTER, LIGHTING = 1, 2, 3, 9, 10
"""Last words of the counter: each kind of draw has numbers of its own, and 4 to 8 are elsewhere."""

OF_FILES = ("crop_flip", "fb_resnet_torch")
"""The kinds of augmentation that cut windows out of images of any size."""

AREA = (0.08, 1.0)
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
TRIES = 10
RESIZE = 256 / 224
"""Validation images are resized to this many times the crop: short side 256 for 224 pixels."""

JITTERED_BY = 0.4
"""The factors of brightness, contrast and saturation are 1 more or less this."""
GREY = np.array([0.299, 0.587, 0.114])
"""The shares of red, green and blue in a pixel's grey."""
LIT_BY = 0.1
"""The standard deviation of lighting, in the colours' own: EIGENVALUES along EIGENVECTORS."""
EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
EIGENVECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
"""Of the colours of ImageNet's pixels in [0, 1]: a column each, its rows red, green and blue."""
NO_COLOURS = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
"""As `colours` has it, of an image that stays as it is."""


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


def colours(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """What becomes of the colours of each image, for pixels in [0, 1], shape (images, 6).

    The first three say by how much a pixel, its grey and the mean of the image's grey are
    multiplied; their sum and the last three make the new red, green and blue. It is what
    fb.resnet.torch comes to, which blends the image with black (brightness), with its mean of grey
    (contrast) and with its own grey (saturation), the factor being the share of the image, and
    lights it then. The order of the three is random there, and of no effect: each is linear, as
    nothing is clamped in between, and any two of them may change places, since a grey image is its
    own grey and the mean of an image is that of its grey.
    """
    brightness, contrast, saturation = jitters(examples, seed=seed, epoch=epoch).T
    mixed = (
        brightness * contrast * saturation,
        brightness * contrast * (1 - saturation),
        brightness * (1 - contrast),
    )
    return np.concatenate((np.stack(mixed, 1), lightings(examples, seed=seed, epoch=epoch)), 1)


def jitters(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """The factors of each image's brightness, contrast and saturation, shape (images, 3)."""
    draws = philox.uniforms((examples, epoch, 0, JITTER), key=seed)[:3]
    factors: NDArray[np.float64] = (1 + JITTERED_BY * (2 * draws - 1)).T
    return factors


def lightings(examples: NDArray[np.int64], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """What is added to red, green and blue of each image, for pixels in [0, 1], (images, 3)."""
    u = philox.uniforms((examples, epoch, 0, LIGHTING), key=seed)
    radius, angle = np.sqrt(-2 * np.log(1 - u[:2])), 2 * np.pi * u[2:]  # Box and Muller 1958
    normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:3]
    first, second, third = LIT_BY * EIGENVALUES[:, None] * normal
    # Not a matrix product, whose last digits depend on how many images there are.
    red, green, blue = (a * first + b * second + c * third for a, b, c in EIGENVECTORS)
    return np.stack((red, green, blue), axis=1)
