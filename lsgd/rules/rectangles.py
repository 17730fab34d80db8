"""Rectangles of images near one aspect ratio, in which they are evaluated with little cropped.

The rule is that of fast.ai and DIU (diux-dev/imagenet18 at a61ced3, training/dataloader.py): images
are sorted by their aspect ratio, and a number of them at a time get the rectangle of their mean
ratio. There the number is that of a process's batch; here it is a setting, so that the rectangle of
an image is the same on any number of processes.
"""

import numpy as np
from numpy.typing import NDArray

MULTIPLE = 8
"""The multiple of pixels to which the longer side of a rectangle is rounded down."""


def rectangle(side: int, aspect: float) -> tuple[int, int]:
    """Return the (width, height) in pixels of a rectangle by its shorter side and aspect ratio.

    The aspect ratio is the width over the height; 0 stands for the square of any side.

    >>> rectangle(288, 1.33323), rectangle(288, 0.75), rectangle(30, 0)
    ((376, 288), (288, 384), (30, 30))
    """
    if not aspect:
        return side, side
    longer = int(side * aspect if aspect >= 1 else side / aspect) // MULTIPLE * MULTIPLE
    return (longer, side) if aspect >= 1 else (side, longer)


def group_by_aspect(
    image_sizes: NDArray[np.int64], group: int
) -> list[tuple[NDArray[np.int64], float]]:
    """Sort images by aspect ratio and return those of each mean ratio, with the ratio.

    `image_sizes` holds the (width, height) of each image as stored, shape (images, 2). Images of
    one ratio are in the order of their ids. Each `group` of sorted images has their mean ratio, to
    five digits; groups of the same mean are returned as one.
    """
    # By Python's rounding, as in that code: the last digit of numpy's may differ, and so the order.
    aspects = np.array([round(width / height, 5) for width, height in image_sizes.tolist()])
    order = np.argsort(aspects, kind="stable")
    begins = range(0, len(order), group)
    means = [float(aspects[order[i : i + group]].mean().round(5)) for i in begins]
    new = [i for i in range(1, len(means)) if means[i] != means[i - 1]]
    parts = np.split(order, [i * group for i in new])
    return list(zip(parts, [means[i] for i in (0, *new)], strict=True))
