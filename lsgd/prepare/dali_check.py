"""The comparison of DALI's decoded pixels with PIL's for one image file."""

import io
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lsgd.errors import UsageError
from lsgd.inputs.decoding import convert_pixels

LEVELS = 1
"""The most by which a colour value may differ between DALI and PIL, of 255."""


class _Decoder:
    """A DALI decoder on the CPU that decodes image files one by one until one fails."""

    def __init__(self) -> None:
        # Imported here: it imports torch, which plain JPEG and PNG files do not need.
        from lsgd.inputs.dali import decode_each

        self.waiting: deque[bytes] = deque()
        self.decoded: Iterator[NDArray[np.uint8]] = decode_each(
            iter(self.waiting.popleft, None), gpu=None
        )
        plain = io.BytesIO()
        Image.new("RGB", (8, 8)).save(plain, "JPEG")
        try:
            self.pixels(plain.getvalue())
        except RuntimeError as error:
            raise UsageError(
                f"DALI is installed but decodes no image here ({error}); fix that first: `python "
                "-m lsgd.doctor` checks it"
            ) from None

    def pixels(self, content: bytes) -> NDArray[np.uint8]:
        """Decode an image file to pixels (height, width, 3); raise RuntimeError on failure."""
        self.waiting.append(content)
        return next(self.decoded)


_decoders: list[_Decoder] = []
"""This process's decoder, if it has one; making one takes longer than using it."""


def dali_difference(content: bytes, image: Image.Image) -> str | None:
    """Return how DALI's pixels of an image file differ from PIL's, or None if both agree."""
    from lsgd.inputs.dali import error_summary

    decoder = _decoders.pop() if _decoders else _Decoder()
    try:
        pixels: NDArray[Any] = decoder.pixels(content)
    except RuntimeError as error:
        why = error_summary(error)
        return f"PIL decodes this {image.format} and DALI fails with {why!r}"
    _decoders.append(decoder)
    expected = np.asarray(convert_pixels(image, 3))
    if pixels.shape != expected.shape:
        return f"DALI decodes {pixels.shape[1]} x {pixels.shape[0]} pixels of this {image.format}"
    largest = int(np.abs(pixels.astype(np.int16) - expected).max())
    if largest > LEVELS:
        return f"the pixels of this {image.format} differ between PIL and DALI by {largest} of 255"
    return None
