"""A process that decodes images for a training process: `python -m lsgd.inputs.decoder`.

The training process starts it and communicates with it over a socket; pixels are in shared memory.
It does not import torch, which would take longer than decoding the first batches.
"""

import mmap
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import InputFailedError
from lsgd.inputs.decoding import (
    centre_crop,
    crop,
    explain_read_error,
    flip_horizontally,
    load_image,
    reuse_pixel_blocks,
    unlimited_image_size,
)
from lsgd.inputs.index import ImageIndex
from lsgd.job.starting import enable_gc
from lsgd.recipe import Data
from lsgd.rules import augmentation
from lsgd.rules.augmentation import parts_in_epoch, policy_of
from lsgd.rules.rectangles import rectangle
from lsgd.rules.sampler import MicroBatch

if TYPE_CHECKING:
    from lsgd.inputs.policy import AugmentationPolicy

Pixels: TypeAlias = NDArray[Any]
"""Images in memory, shape (images, height, width, channels), with values of 0 to 255."""

LabelsAndColours: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64] | None]
"""The labels of a micro-batch, and its augmentation.colour_transforms or None."""


class ImageFiles:
    """A decoder of an indexed image dataset, which decodes and augments micro-batches by PIL.

    It is small to pickle, since other processes map the same index files.
    """

    def __init__(self, data: Data, indexes: Mapping[str, ImageIndex], *, seed: int) -> None:
        # Without the names of excluded images, which may be many, and no index has.
        self.data, self.seed, self.indexes = replace(data, skip=[]), seed, indexes

    @cached_property
    def policy(self) -> "AugmentationPolicy":
        """The policy of the augmentation, made in the process that uses it."""
        # Imported here, since it imports torch, which other decoders do without.
        from lsgd.inputs.policy import AugmentationPolicy

        return AugmentationPolicy(self.data)

    def shape(self, each: MicroBatch) -> tuple[int, ...]:
        """Return the shape (images, height, width, channels) of a micro-batch's decoded pixels."""
        width, height = rectangle(each.side or self.data.image_size, each.aspect)
        return len(each.examples), height, width, self.data.channels

    @property
    def dtype(self) -> type[np.generic]:
        """The type of decoded pixels: 8 bits of RGB, or float32 of one channel with 16 bits."""
        return np.uint8 if self.data.channels == 3 else np.float32

    @unlimited_image_size()
    def decode(self, each: MicroBatch, pixels: Pixels) -> LabelsAndColours:
        """Decode and augment a micro-batch's images into `pixels`; return labels and colour jitter.

        Raises InputFailedError, which names the step, if an image cannot be read.
        """
        index = self.indexes[each.split]
        try:
            return index.labels(each.examples), self._decode(index, each, pixels)
        except InputFailedError as error:
            raise explain_read_error(error, each, index, self.data.name) from None

    def _decode(
        self, index: ImageIndex, each: MicroBatch, pixels: Pixels
    ) -> NDArray[np.float64] | None:
        data, ids, side = self.data, each.examples, each.side or self.data.image_size
        bicubic, shape = data.augmentation == "fb_resnet_torch", pixels.shape[1:]
        parts = parts_in_epoch(data.augmentation, each.epoch, data.augmented_epochs)
        draw: dict[str, Any] = {"seed": self.seed, "epoch": each.epoch or 0}
        if crops := "crop" in parts:
            ranges = {"area_range": data.crop_area, "aspect_range": data.crop_aspect}
            windows = augmentation.crop_windows(index.sizes(ids), ids, **draw | ranges)
        flips = "flip" in parts
        mirrored = augmentation.flip_mask(ids, **draw) if flips else np.zeros(len(ids), bool)
        policy = self.policy if policy_of(parts) else None
        seeds = augmentation.policy_seeds(ids, **draw) if policy else ()
        for i, example in enumerate(ids):
            whole = load_image(index, example, channels=data.channels)
            if crops:
                image = crop(whole, windows[i], side, bicubic=bicubic)
            else:
                ratio = each.crop_ratio or data.crop_ratio
                image = centre_crop(
                    whole, side, crop_ratio=ratio, aspect=each.aspect, bicubic=bicubic
                )
            image = flip_horizontally(image) if mirrored[i] else image
            image = policy.apply(image, seeds[i]) if policy else image
            pixels[i] = np.asarray(image).reshape(shape)
        return augmentation.colour_transforms(ids, **draw) if "colour" in parts else None


class SharedPixelBuffer:
    """A buffer in memory shared by two processes, for the pixels of one micro-batch at a time.

    It is anonymous, so that a killed process leaves no file behind. It grows to the size of the
    largest micro-batch and is reused, since its pages are allocated already.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: Pixels = np.empty(0, np.uint8)

    def pixels(self, shape: tuple[int, ...], dtype: type[np.generic]) -> Pixels:
        """Return the shared memory as a pixel array of this shape and type, with its contents.

        The memory is enlarged if needed.
        """
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size > len(self._bytes):
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self._bytes = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        return self._bytes[:size].view(dtype).reshape(shape)


def main(descriptor: int, *buffers: int) -> None:
    """Decode requested micro-batches of images into shared memory until the request socket closes.

    `descriptor` is the socket's, the others are those of the SharedPixelBuffers. The first message
    is the ImageFiles, each further one a MicroBatch and the number of a buffer. The replies are in
    the same order, each with the result of ImageFiles.decode or its InputFailedError.
    """
    enable_gc()
    reuse_pixel_blocks()
    trainer, shared = Connection(descriptor), [SharedPixelBuffer(room) for room in buffers]
    messages: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(trainer, messages), name="trainer", daemon=True).start()
    files: ImageFiles = messages.get()
    while True:
        each, room = messages.get()
        answer: LabelsAndColours | InputFailedError
        try:
            answer = files.decode(each, shared[room].pixels(files.shape(each), files.dtype))
        except InputFailedError as error:
            answer = error
        try:
            trainer.send(answer)
        except BrokenPipeError:
            os._exit(1)


def _listen(trainer: "Connection[Any, Any]", messages: "SimpleQueue[Any]") -> None:
    """Queue the decoding requests of the training process; exit this process once it has exited.

    It runs in a thread, so that a busy decoder exits too.
    """
    with suppress(EOFError, OSError):
        while True:
            messages.put(trainer.recv())
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
