"""Image files through NVIDIA DALI, on the CPU alone or with decoding and resizing on the GPU.

DALI reads, decodes and resizes; which files, in which order and which window of each is ours. One
pipeline carries the whole share of a process, for training and for evaluation: a window of the
stored image is decoded, and a region of that window is resized to what the model takes.
"""

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import dali
from nvidia.dali import fn, types
from PIL import Image
from torch.utils.dlpack import from_dlpack

from lsgd.errors import InputFailed
from lsgd.inputs import Batch
from lsgd.inputs.decoding import load_image, moment, needed, unshared
from lsgd.inputs.index import Index
from lsgd.inputs.sending import sent
from lsgd.recipe import Data, InputsSettings
from lsgd.rules import augmentation
from lsgd.rules.sampler import Pass

DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16}
AHEAD = 4
"""Passes whose files are looked up, or read out of shards, at once and ahead of DALI."""

_Feed = tuple[list[NDArray[np.uint8]], *tuple[NDArray[Any], ...]]
"""The feed of a batch; per image: path or content, window's corner and shape, region's begin and
end, mirrored, and what `recolour` takes where colours change."""


class DaliInputs:
    """An image folder behind NVIDIA DALI, which decodes on the CPU's cores or on the GPU."""

    def __init__(
        self,
        data: Data,
        indexes: tuple[Index, Index],
        settings: InputsSettings,
        *,
        seed: int,
        device: torch.device,
        decoders: int,
        largest_batch: int,
        channels_last: bool,
    ) -> None:
        self.data, self.seed, self.device = data, seed, device
        self.recolours = data.augmentation == "fb_resnet_torch"
        self.train_index, self.val_index = indexes
        self.on_gpu = device.type == "cuda"
        decodes_on_gpu = self.on_gpu and settings.decode_on != "cpu"
        where = f"GPU, {settings.hardware_share:.0%} in hardware" if decodes_on_gpu else "CPU"
        self.name = f"DALI {dali.__version__} on the {where}, {decoders} threads"
        self.in_shards = any(index.in_shards() for index in indexes)
        self.channels_last = channels_last
        self.decoding_gpu = device.index if decodes_on_gpu else None
        self.requests: Iterator[tuple[Pass, _Feed]] = iter(())
        self.under_way: deque[Pass] = deque()
        self.readers = ThreadPoolExecutor(AHEAD)
        self.pipeline = dali.Pipeline(
            batch_size=largest_batch,
            num_threads=max(1, decoders),
            device_id=device.index if self.on_gpu else None,
            prefetch_queue_depth=settings.prefetch,
        )
        with self.pipeline:
            self.pipeline.set_outputs(*self._graph(settings, decodes_on_gpu))
        self.pipeline.build()

    def train(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, augmented, in the order of the passes."""
        return self._load(passes)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        """The images of each pass, resized and cropped at the centre."""
        return self._load(passes)

    def _graph(self, settings: InputsSettings, decodes_on_gpu: bool) -> tuple[Any, Any]:
        """Normalised images, and the lengths of the files they were read from."""
        file, corner, shape, begin, end, mirror, *colours = fn.external_source(
            source=self._next, num_outputs=9 if self.recolours else 6, batch=True
        )
        if not self.in_shards:
            # Not mapped: a mapped file that is cut short while it is read kills the process.
            file = fn.io.file.read(file, dont_use_mmap=True)
        hardware = settings.hardware_share
        window = decode(file, corner, shape, on_gpu=decodes_on_gpu, hardware=hardware)
        pixels = resize(window, self.data, roi_start=begin, roi_end=end)
        if self.on_gpu and not decodes_on_gpu:
            pixels = pixels.gpu()  # as 8 bits: a quarter of what they will be
        if self.recolours:
            pixels = recolour(pixels, *colours)
        layout = "HWC" if self.channels_last else "CHW"
        images = normalise(pixels, mirror, self.data, dtype=settings.dtype, layout=layout)
        return images, file.shape(dtype=types.INT64)

    def _load(self, passes: Iterable[Pass]) -> Iterator[Batch]:
        self.requests = iter(())
        while self.under_way:  # what is left of a round that was given up
            self._run()
        self.requests = self._ahead(passes)
        self.pipeline.reset()
        while (batch := self._run()) is not None:
            yield batch

    def _run(self) -> "Batch | None":
        """The next batch under way, or None after the last one."""
        stream = torch.cuda.current_stream(self.device) if self.on_gpu else None
        try:
            images, lengths = self.pipeline.run(stream)
        except StopIteration:
            return None
        except RuntimeError as error:
            raise self._why(error) from None
        each = self.under_way.popleft()
        index, ids = self._index_of(each), each.examples
        self._check_lengths(np.array(lengths.as_tensor())[:, 0], each)
        tensor = from_dlpack(images.as_tensor())
        labels = sent(index.labels(ids), self.device)
        return tensor.permute(0, 3, 1, 2) if self.channels_last else tensor, labels

    def _index_of(self, each: Pass) -> Index:
        return self.train_index if each.split == "train" else self.val_index

    def _next(self) -> "_Feed":
        """The next feed of DALI, which calls this ahead of the batches that it has handed out."""
        each, feed = next(self.requests)
        self.under_way.append(each)
        return feed

    def _ahead(self, passes: Iterable[Pass]) -> Iterator[tuple[Pass, "_Feed"]]:
        """Each request with its feed, made by threads while DALI works on earlier ones."""
        pending = deque[tuple[Pass, Future[_Feed]]]()
        for each in passes:
            pending.append((each, self.readers.submit(self._feed, each)))
            if len(pending) == AHEAD:
                first, feed = pending.popleft()
                yield first, feed.result()
        for first, feed in pending:
            yield first, feed.result()

    def _feed(self, each: Pass) -> "_Feed":
        index, ids = self._index_of(each), each.examples
        try:
            sizes = index.sizes(ids)
            files = self._files(index, ids)
        except InputFailed as error:
            raise needed(error, each, index) from None
        colours = np.tile(augmentation.NO_COLOURS, (len(ids), 1))
        if each.epoch is not None and self.data.augmentation in augmentation.OF_FILES:
            draw = {"seed": self.seed, "epoch": each.epoch}
            windows = augmentation.crop_windows(sizes, ids, **draw)
            mirror = augmentation.flips(ids, **draw)
            regions = np.concatenate((np.zeros(sizes.shape), windows[:, 2:]), axis=1)
            if self.recolours:
                colours = augmentation.colours(ids, **draw)
        else:
            windows = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
            mirror = np.zeros(len(ids), bool)
            regions = augmentation.centre_regions(sizes, self.data.image_size)
        return (
            files,
            _rows_first(windows[:, :2], np.int32),
            _rows_first(windows[:, 2:], np.int32),
            _rows_first(regions[:, :2], np.float32),
            _rows_first(regions[:, :2] + regions[:, 2:], np.float32),
            mirror.astype(np.int32),
            *(_matrices(colours) if self.recolours else ()),
        )

    def _files(self, index: Index, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """The input of DALI for each image: the path of its file, or its content in a shard."""
        if self.in_shards:
            contents = [index.read(example) for example in ids]
        else:
            # All at once, and as bytes: a Path of each would be a third of this thread's work.
            root = os.fsencode(index.root) + b"/"
            contents = [root + path for path in index.paths(ids)]
        return [np.frombuffer(content, np.uint8) for content in contents]

    def _check_lengths(self, lengths: NDArray[np.int64], each: Pass) -> None:
        index, ids = self._index_of(each), each.examples
        # DALI decodes no more of a file than the window needs, so it may not notice a cut.
        for example in ids[lengths != index.lengths(ids)]:
            try:
                index.read(example)
            except InputFailed as error:
                raise needed(error, each, index) from None

    def _why(self, error: RuntimeError) -> InputFailed:
        """The failure of the first image under way that cannot be decoded, or of their batch."""
        images = [(each, example) for each in self.under_way for example in each.examples]
        for each, example in images:
            index = self._index_of(each)
            try:
                load_image(index, example)
            except InputFailed as failed:
                return needed(failed, each, index)
        # PIL reads all of them: which of them does DALI not? Without memory it reads none at all.
        plain = io.BytesIO()
        Image.new("RGB", (8, 8)).save(plain, "JPEG")
        contents = (self._index_of(each).read(example) for each, example in images)
        alone = decode_each(chain([plain.getvalue()], contents), gpu=self.decoding_gpu)
        try:
            next(alone)
        except RuntimeError:
            return self._stopped(error)
        for each, example in images:
            try:
                next(alone)
            except RuntimeError as failed:
                return self._refused(each, example, failed)
        return self._stopped(error)

    def _refused(self, each: Pass, example: int, error: RuntimeError) -> InputFailed:
        """The failure of an image that PIL reads and DALI does not."""
        index = self._index_of(each)
        kind = unshared(Image.open(io.BytesIO(index.read(example))))
        why = f"PIL decodes it and DALI does not, which says {_reason(error)!r}"
        if kind:
            why += f": {kind}"
        return needed(index.failed(example, f"{why}; inputs=torchvision reads it"), each, index)

    def _stopped(self, error: RuntimeError) -> InputFailed:
        """The failure of a whole batch, where no image of it is known to be the reason."""
        if not self.under_way:
            return InputFailed(
                f"DALI has stopped ({_reason(error)}) before it was given an image; "
                "inputs=torchvision does without it"
            )
        each = self.under_way[0]
        index = self._index_of(each)
        return InputFailed(
            f"DALI has stopped ({_reason(error)}) in the batch of {len(each.examples)} images "
            f"needed {moment(each)}, {index.path(each.examples[0])} to "
            f"{index.path(each.examples[-1])}, each of which it decodes by itself; resume with the "
            "same words and run_dir, with a smaller inputs.prefetch or, in an evaluation, "
            "val_batch if it was for want of memory, or with inputs=torchvision"
        )


def decode(file: Any, corner: Any, shape: Any, *, on_gpu: bool, hardware: float) -> Any:
    """DALI's graph from a file's bytes to a window of its pixels, (height, width, 3) of 8 bits.

    `corner` is the window's (top, left), `shape` its (height, width), in pixels as stored; nothing
    outside of it is decoded where the format allows that.
    """
    # A header that cannot be parsed is an error here, but has crashed the decoder (DALI 2.4): its
    # window waits for the header, and the minimum is that window.
    stored = fn.peek_image_shape(file, adjust_orientation=False, dtype=types.INT32)
    shape = dali.math.min(shape, stored[:2])
    options = {"device": "mixed", "hw_decoder_load": hardware} if on_gpu else {"device": "cpu"}
    return fn.decoders.image_slice(
        file,
        corner,
        shape,
        axes=(0, 1),
        normalized_anchor=False,
        normalized_shape=False,
        output_type=types.RGB,
        # PIL leaves images as they are stored, and so do the published numbers.
        adjust_orientation=False,
        # As on the CPU; on a GPU the default is coarser.
        jpeg_fancy_upsampling=True,
        **options,
    )


def decoded(content: bytes, *, gpu: int | None) -> NDArray[np.uint8]:
    """The pixels (height, width, 3) of one image file, decoded on the CPU or on this GPU.

    A run does not need it: it shows whether DALI works on this machine.
    """
    return next(decode_each([content], gpu=gpu))


def decode_each(contents: Iterable[bytes], *, gpu: int | None) -> Iterator[NDArray[np.uint8]]:
    """The pixels (height, width, 3) of each image file, decoded by itself on the CPU or this GPU.

    Raises RuntimeError at the first that DALI does not decode.
    """
    feed: tuple[Any, ...] = ()
    pipeline = dali.Pipeline(
        batch_size=1,
        num_threads=1,
        device_id=gpu,
        prefetch_queue_depth=1,  # nothing ahead: an error is that of the image last fed
    )
    with pipeline:
        file, corner, shape = fn.external_source(source=lambda: feed, num_outputs=3, batch=True)
        window = decode(file, corner, shape, on_gpu=gpu is not None, hardware=0)
        pipeline.set_outputs(window)
    for content in contents:
        whole = [np.zeros(2, np.int32)], [np.full(2, 2**20, np.int32)]
        feed = ([np.frombuffer(content, np.uint8)], *whole)
        (pixels,) = pipeline.run()
        image: NDArray[np.uint8] = np.array(pixels.as_cpu()[0])
        yield image


def _reason(error: RuntimeError) -> str:
    """What happened, without where in its graph, as DALI's error has it at length."""
    lines = str(error).rpartition("encountered:")[2].splitlines()
    texts = (line.strip() for line in lines if not line.startswith("Current pipeline object"))
    return " ".join(text for text in texts if text)[:200]


def resize(window: Any, data: Data, **region: Any) -> Any:
    """DALI's graph from windows, or the region of each, to the size that the model takes."""
    return fn.resize(
        window,
        size=(data.image_size, data.image_size),
        interp_type=types.INTERP_CUBIC
        if data.augmentation == "fb_resnet_torch"
        else types.INTERP_TRIANGULAR,
        antialias=True,
        **region,
    )


def recolour(pixels: Any, of_pixel: Any, of_mean: Any, added: Any) -> Any:
    """DALI's graph from 8-bit pixels to others, which are not clamped: a sum of two products, of a
    matrix of each image with its pixels and of one with their mean, and of what is `added`."""
    # All that differs by image is an argument: those may come from the CPU to a GPU's operators.
    mean = fn.reductions.mean(pixels, axes=(0, 1), keep_dims=True)
    mixed = fn.coord_transform(pixels, M=of_pixel, T=added, dtype=types.FLOAT)
    return mixed + fn.coord_transform(mean, M=of_mean, dtype=types.FLOAT)


def _matrices(colours: NDArray[np.float64]) -> Iterator[NDArray[np.float32]]:
    """What `recolour` takes, for pixels of 0 to 255, of images with these augmentation.colours."""
    own, of_grey, of_mean = colours[:, :3].T[:, :, None, None]
    grey = np.tile(augmentation.GREY, (3, 1))
    for each in (own * np.eye(3) + of_grey * grey, of_mean * grey, 255 * colours[:, 3:]):
        yield each.astype(np.float32)


def normalise(pixels: Any, mirror: Any, data: Data, *, dtype: str, layout: str) -> Any:
    """DALI's graph from pixels of 0 to 255 to (pixel / 255 - mean) / std, mirrored where so."""
    return fn.crop_mirror_normalize(
        pixels,
        mirror=mirror,
        mean=[255 * mean for mean in data.mean],
        std=[255 * std for std in data.std],
        dtype=DTYPES[dtype],
        output_layout=layout,
    )


def _rows_first(columns: NDArray[Any], kind: type) -> NDArray[Any]:
    """(x, y) columns as DALI counts: y before x, contiguous."""
    return np.ascontiguousarray(columns[:, ::-1], dtype=kind)
