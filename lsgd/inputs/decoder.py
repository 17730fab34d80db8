"""A process that decodes images for a training process: `python -m lsgd.inputs.decoder`.

Whoever trains starts it and speaks with it over a socket. It has no torch in it, which takes longer
to import than to decode the first batches; pixels lie in memory that both have.
"""

import mmap
import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import InputFailed
from lsgd.inputs.decoding import centre_crop, crop, keep_blocks, load_image, mirrored, needed
from lsgd.inputs.index import Index
from lsgd.job.garbage import look_again
from lsgd.recipe import Data
from lsgd.rules import augmentation
from lsgd.rules.sampler import Pass

Pixels: TypeAlias = NDArray[np.uint8]
"""Images as stored in memory, (images, height, width, 3)."""

Beside: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64] | None]
"""What a pass has beside its pixels: labels, and augmentation.colours if it has any."""


class ImageFiles:
    """The image files of a dataset, and what a pass makes of them.

    It is small to pickle: another process maps the same indexes.
    """

    def __init__(self, data: Data, indexes: tuple[Index, Index], *, seed: int) -> None:
        self.side, self.augmentation, self.seed = data.image_size, data.augmentation, seed
        self.train, self.val = indexes

    def shape(self, each: Pass) -> tuple[int, ...]:
        """The shape of the pixels of a pass."""
        return len(each.examples), self.side, self.side, 3

    def decode(self, each: Pass, pixels: Pixels) -> Beside:
        """Write the images of a pass into `pixels`, of its shape; returns the rest of the pass.

        Raises InputFailed, with the moment at which it was needed, if an image cannot be had.
        """
        index = self.train if each.split == "train" else self.val
        try:
            return index.labels(each.examples), self._decode(index, each, pixels)
        except InputFailed as error:
            raise needed(error, each, index) from None

    def _decode(self, index: Index, each: Pass, pixels: Pixels) -> NDArray[np.float64] | None:
        ids, bicubic = each.examples, self.augmentation == "fb_resnet_torch"
        if each.epoch is None or self.augmentation not in augmentation.OF_FILES:
            for i, example in enumerate(ids):
                image = centre_crop(load_image(index, example), self.side, bicubic=bicubic)
                pixels[i] = np.asarray(image)
            return None
        draw = {"seed": self.seed, "epoch": each.epoch}
        windows = augmentation.crop_windows(index.sizes(ids), ids, **draw)
        flips = augmentation.flips(ids, **draw)
        for i, example in enumerate(ids):
            image = crop(load_image(index, example), windows[i], self.side, bicubic=bicubic)
            pixels[i] = np.asarray(mirrored(image) if flips[i] else image)
        return augmentation.colours(ids, **draw) if bicubic else None


class Room:
    """Memory that two processes share, for the pixels of one pass after the other.

    It has no name that a killed process would leave behind, is as large as the largest pass so far,
    and is kept: the next pass finds its pages there.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._bytes: Pixels = np.empty(0, np.uint8)

    def pixels(self, shape: tuple[int, ...]) -> Pixels:
        """The array of this shape in it, which holds what either process has written last."""
        size = int(np.prod(shape))
        if size > len(self._bytes):
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self._bytes = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        return self._bytes[:size].reshape(shape)


def main(descriptor: int, *rooms: int) -> None:
    """Decode what is asked for over this socket, into these rooms, until the other end is closed.

    The first message is the ImageFiles, each further one a Pass and the number of a room; the
    answers come in the same order, each what ImageFiles.decode returns or the InputFailed it
    raises.
    """
    look_again()
    keep_blocks()
    trainer, shared = Connection(descriptor), [Room(room) for room in rooms]
    messages: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_listen, args=(trainer, messages), name="trainer", daemon=True).start()
    files: ImageFiles = messages.get()
    while True:
        each, room = messages.get()
        answer: Beside | InputFailed
        try:
            answer = files.decode(each, shared[room].pixels(files.shape(each)))
        except InputFailed as error:
            answer = error
        try:
            trainer.send(answer)
        except BrokenPipeError:
            os._exit(1)


def _listen(trainer: "Connection[Any, Any]", messages: "SimpleQueue[Any]") -> None:
    """Take messages as they come, and leave with the trainer, however busy this process is."""
    with suppress(EOFError, OSError):
        while True:
            messages.put(trainer.recv())
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
