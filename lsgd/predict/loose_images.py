"""Image files outside any dataset: finding them, and decoding them as an evaluation does.

PIL decodes them, as with inputs=torchvision: the pixels of an evaluation by DALI differ slightly.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs.decoding import centre_crop, load_loose_image, unlimited_image_size
from lsgd.inputs.index import IMAGE_SUFFIXES
from lsgd.paths import files_below
from lsgd.recipe import Data

ImagePixels = NDArray[np.uint8]
"""The 8-bit pixels of one image as the network sees it, shape (side, side, 3)."""


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Return the given image files, and the images at any depth of the given folders, sorted.

    Links are followed in folders, and hidden and system files skipped. Raises UsageError for a path
    that does not exist and for a folder without an image.
    """
    found: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise UsageError(f"{path} does not exist; write an image, or a folder of images")
            found.append(path)
            continue
        inside = sorted(
            path / name
            for name in files_below(path, once=True)
            if name.lower().endswith(IMAGE_SUFFIXES)
        )
        if not inside:
            raise UsageError(
                f"{path} has no image (a file named *{', *'.join(IMAGE_SUFFIXES)}); write a folder "
                "of images"
            )
        found += inside
    return found


def decode_images(
    paths: Sequence[Path], data: Data, threads: int
) -> Iterator[ImagePixels | InputFailedError]:
    """Yield the resized and cropped pixels of each image file in order, or why it cannot be read.

    A few images are decoded ahead, so that memory does not grow with their number.
    """
    bicubic = data.augmentation == "fb_resnet_torch"

    def decode(path: Path) -> ImagePixels | InputFailedError:
        try:
            whole = load_loose_image(path, channels=data.channels)
            image = centre_crop(whole, data.image_size, crop_ratio=data.crop_ratio, bicubic=bicubic)
        except InputFailedError as error:
            return error
        return np.asarray(image).reshape(image.height, image.width, -1)

    pending: deque[Future[ImagePixels | InputFailedError]] = deque()
    with unlimited_image_size(), ThreadPoolExecutor(threads, "decoder") as pool:
        for path in paths:
            pending.append(pool.submit(decode, path))
            if len(pending) > 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
