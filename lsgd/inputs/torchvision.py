"""Image files through PIL and torchvision's transforms, in processes that decode ahead."""

import atexit
import multiprocessing
import os
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import connection, forkserver, resource_tracker
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from lsgd.errors import InputFailed
from lsgd.inputs import Batch
from lsgd.inputs.colours import recolour
from lsgd.inputs.decoding import keep_blocks, load_image, needed
from lsgd.inputs.index import Index
from lsgd.inputs.normalise import Normalise
from lsgd.job import preemption
from lsgd.recipe import Data, InputsSettings
from lsgd.rules import augmentation
from lsgd.rules.sampler import Pass
from lsgd.vision import transforms

_Decoded = tuple[Tensor, Tensor, Tensor | None]
"""8-bit pixels (images, height, width, 3), labels, and augmentation.colours of a pass that has
any."""

LOOK = 1.0
"""Seconds between looks whether the decoders live, while the trainer waits for one of them."""


class FolderInputs:
    """An image folder whose images torchvision decodes, in processes of their own.

    The processes live as long as this object, through all epochs and evaluations.
    """

    def __init__(
        self,
        data: Data,
        indexes: tuple[Index, Index],
        settings: InputsSettings,
        *,
        seed: int,
        device: torch.device,
        decoders: int,
    ) -> None:
        self.name = f"torchvision in {decoders} processes"
        self.requests = _Requests()
        self.device = device
        self.normalise = Normalise(data, device)
        if decoders:
            # A launcher may signal every process there is; these end with the one they work for.
            resource_tracker.ensure_running()  # it would unblock signals
            # Imported once, while the trainer makes its model, and not anew by each decoder.
            forkserver.set_forkserver_preload([__name__])
            with preemption.unheard():
                forkserver.ensure_running()
        self.loader: DataLoader[_Decoded | InputFailed] = DataLoader(
            _Images(data, indexes, seed=seed),
            # What the sampler yields goes to the dataset as it is: here a whole pass.
            sampler=self.requests,
            batch_size=None,
            num_workers=decoders,
            prefetch_factor=settings.prefetch if decoders else None,
            persistent_workers=decoders > 0,
            pin_memory=device.type == "cuda",
            # A fork would copy the threads and locks of the communication library half alive.
            multiprocessing_context="forkserver" if decoders else None,
            worker_init_fn=_start_decoder,
        )

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, augmented, in the order of the passes."""
        return self._load(passes)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, resized and cropped at the centre."""
        return self._load(passes)

    def _load(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        self.requests.passes = passes
        try:
            batches = iter(self.loader)
            _look_often(batches)
            # Registered after torch's own exit handlers, this runs before them: after a SIGTERM
            # they would wait for the processes, which do not hear signals.
            atexit.unregister(_kill_children)
            atexit.register(_kill_children)
            for batch in batches:
                if isinstance(batch, InputFailed):
                    raise batch
                pixels, labels, colours = batch
                if self.device.type == "cpu":
                    pixels = _floats(pixels)
                if colours is not None:
                    pixels = pixels.to(self.device, non_blocking=True).float()
                    recolour(pixels, colours.to(self.device, non_blocking=True))
                yield self.normalise(pixels.permute(0, 3, 1, 2)), labels
        except (RuntimeError, EOFError, OSError) as error:
            # The latter two are raised if a process was killed while it handed over a batch.
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise InputFailed(
                f"a process that decodes images has died ({why}); resume, with fewer "
                "inputs.decoders if it was for want of memory"
            ) from None


def _look_often(batches: Iterator[Any]) -> None:
    """Let torch's iterator notice within LOOK seconds that a decoder was killed.

    torch looks every 5 seconds, as the end of a child of its own is signalled; but the decoders are
    children of the fork server. A version of torch without this method looks at its own pace.
    """
    look = getattr(type(batches), "_try_get_data", None)
    if look:
        # Weakly, since an iterator in a circle keeps its processes until garbage is collected.
        setattr(batches, look.__name__, partial(look, weakref.proxy(batches), LOOK))


def _floats(pixels: Tensor) -> Tensor:
    """8-bit pixels as float32, in memory that glibc finds again for the batch after the next.

    torch wants an address divisible by 64, and glibc looks for a gap that is larger by as much: the
    one that an equal batch has left is too small, and gaps add up to 40 batches. Memory from numpy
    has any address; what is skipped to one divisible by 64 is part of what was asked for.
    """
    room = np.empty(pixels.numel() + 15, np.float32)
    start = -room.ctypes.data % 64 // room.itemsize
    floats = torch.from_numpy(room[start : start + pixels.numel()])
    return floats.view(pixels.shape).copy_(pixels)


def _start_decoder(decoder: int) -> None:
    keep_blocks()
    _end_with_trainer()


def _end_with_trainer() -> None:
    """Watch from this decoder, however busy it is, for the end of the process it works for.

    torch's own watch is of the parent, which is the fork server; and that lives, as the resource
    tracker does, for as long as one of those it has made.
    """
    trainer = multiprocessing.parent_process()
    assert trainer, "a decoder runs in a process of its own"

    def watch() -> None:
        connection.wait([trainer.sentinel])
        os._exit(1)

    Thread(target=watch, name="trainer's end", daemon=True).start()


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()


class _Requests(Sampler[Pass]):
    """A sampler whose passes are replaced for each round, since the processes outlive a round."""

    passes: Iterable[Pass] = ()

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)


class _Images(Dataset[_Decoded | InputFailed]):
    """A dataset whose items are whole passes, not single images."""

    def __init__(self, data: Data, indexes: tuple[Index, Index], *, seed: int) -> None:
        self.data, self.seed = data, seed
        self.train, self.val = indexes
        self.full = data.augmentation == "fb_resnet_torch"

    def __getitem__(self, each: Pass) -> _Decoded | InputFailed:
        """The images of a pass, or why one of them cannot be had.

        A failure is returned, not raised: torch would wrap its text into a traceback.
        """
        index = self.train if each.split == "train" else self.val
        try:
            return self._load(index, each)
        except InputFailed as error:
            return needed(error, each, index)

    def _load(self, index: Index, each: Pass) -> _Decoded:
        ids, side = each.examples, self.data.image_size
        pixels = torch.empty((len(ids), side, side, 3), dtype=torch.uint8)
        if get_worker_info():
            pixels.share_memory_()  # written where the training process reads it
        colours = None
        if each.epoch is not None and self.data.augmentation in augmentation.OF_FILES:
            draw = {"seed": self.seed, "epoch": each.epoch}
            windows = augmentation.crop_windows(index.sizes(ids), ids, **draw)
            flips = augmentation.flips(ids, **draw)
            for i, example in enumerate(ids):
                image = crop(load_image(index, example), windows[i], side, bicubic=self.full)
                image = transforms.functional.hflip(image) if flips[i] else image
                pixels[i] = torch.from_numpy(np.array(image))
            if self.full:
                colours = torch.from_numpy(augmentation.colours(ids, **draw)).float()
        else:
            for i, example in enumerate(ids):
                image = centre_crop(load_image(index, example), side, bicubic=self.full)
                pixels[i] = torch.from_numpy(np.array(image))
        return pixels, torch.from_numpy(index.labels(ids)), colours


def crop(
    image: Image.Image, window: NDArray[np.int64], side: int, *, bicubic: bool = False
) -> Image.Image:
    """The window (left, top, width, height) of an image, resized to `side` x `side`."""
    left, top, width, height = window.tolist()
    cropped: Image.Image = transforms.functional.resized_crop(
        image, top, left, height, width, [side, side], _interpolation(bicubic), antialias=True
    )
    return cropped


def centre_crop(image: Image.Image, side: int, *, bicubic: bool = False) -> Image.Image:
    """Short side resized to 256/224 of `side`, then the centred square of `side` pixels."""
    short = round(side * augmentation.RESIZE)
    resized = transforms.functional.resize(image, [short], _interpolation(bicubic), antialias=True)
    cropped: Image.Image = transforms.functional.center_crop(resized, [side, side])
    return cropped


def _interpolation(bicubic: bool) -> Any:
    modes = transforms.InterpolationMode
    return modes.BICUBIC if bicubic else modes.BILINEAR
