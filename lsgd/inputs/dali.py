"""A data loader of image files by NVIDIA DALI, which decodes and resizes on the CPU or the GPU.

DALI reads, decodes and resizes; lsgd chooses the files, their order and the crop window of each.
One pipeline serves training and evaluation of a process: it decodes a window of the stored image
and resizes a region of that window to the model's input size.
"""

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
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

from lsgd.errors import InputFailedError
from lsgd.inputs import Batch, ExampleColumns, Inputs
from lsgd.inputs.decoding import (
    decoding_mismatch,
    describe_step,
    explain_read_error,
    load_image,
    unlimited_image_size,
)
from lsgd.inputs.index import ImageIndex, index_columns
from lsgd.job.device import arrays_to_device, is_nvidia, to_device
from lsgd.recipe import Data, InputsSettings, Recipe
from lsgd.rules import augmentation
from lsgd.rules.augmentation import parts_in_epoch, parts_of
from lsgd.rules.rectangles import rectangle
from lsgd.rules.sampler import MicroBatch

DTYPES = {"float32": types.FLOAT, "float16": types.FLOAT16}
READ_AHEAD = 4
"""The number of micro-batches whose files are located, or read from shards, ahead of DALI."""

_Feed = tuple[list[NDArray[np.uint8]], *tuple[NDArray[Any], ...]]
"""The inputs of DALI's pipeline for a batch, one entry for each image.

They are path or content, the window's corner and shape, the region's begin and end, whether the
image is mirrored, the matrices of `recolour` if colours change, and the image's size if sizes do.
"""


class DaliInputs(Inputs):
    """A data loader of image folders that decodes and augments by NVIDIA DALI on CPU or GPU."""

    def __init__(
        self,
        recipe: Recipe,
        indexes: Mapping[str, ImageIndex],
        device: torch.device,
        decoders: int,
        largest_batch: int,
    ) -> None:
        settings = recipe.inputs
        self.data, self.seed, self.device = recipe.data, recipe.seed, device
        self.sizes_change = recipe.changes_image_sizes
        self.recolours = "colour" in parts_of(recipe.data.augmentation)
        self.indexes = indexes
        self.on_gpu = is_nvidia(device)
        decodes_on_gpu = self.on_gpu and settings.decode_on != "cpu"
        where = f"GPU, {settings.hardware_share:.0%} in hardware" if decodes_on_gpu else "CPU"
        self.name = f"DALI {dali.__version__} on the {where}, {decoders} threads"
        self.in_shards = any(index.in_shards() for index in indexes.values())
        # auto is decided after the loader is open; the workload converts the images then.
        self.channels_last = recipe.channels_last is True
        self.decoding_gpu = device.index if decodes_on_gpu else None
        self.requests: Iterator[tuple[MicroBatch, _Feed]] = iter(())
        self.in_flight: deque[MicroBatch] = deque()
        self.readers = ThreadPoolExecutor(READ_AHEAD)
        self.pipeline = dali.Pipeline(
            batch_size=largest_batch,
            num_threads=max(1, decoders),
            device_id=device.index if self.on_gpu else None,
            prefetch_queue_depth=settings.prefetch,
        )
        with self.pipeline:
            self.pipeline.set_outputs(*self._graph(settings, decodes_on_gpu))
        self.pipeline.build()

    def columns(self) -> ExampleColumns:
        """Return the metadata columns (such as path and label) of all indexed images."""
        return index_columns(self.indexes)

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield the images and labels of each micro-batch in order, augmented in training."""
        self.requests = iter(())
        while self.in_flight:  # batches of an unfinished round
            self._run()
        self.requests = self._ahead(passes)
        self.pipeline.reset()
        while (batch := self._run()) is not None:
            yield batch

    def _graph(self, settings: InputsSettings, decodes_on_gpu: bool) -> tuple[Any, Any, Any]:
        """Build DALI's graph of decoding and augmentation.

        Return its images, and the lengths of their files and the stored (height, width).
        """
        file, corner, shape, begin, end, mirror, *others = fn.external_source(
            source=self._next, num_outputs=6 + 3 * self.recolours + self.sizes_change, batch=True
        )
        region: dict[str, Any] = {"roi_start": begin, "roi_end": end}
        if self.sizes_change:
            *others, region["size"] = others
        if not self.in_shards:
            # Not mapped: truncating a mapped file while it is read kills the process.
            file = fn.io.file.read(file, dont_use_mmap=True)
        hardware = settings.hardware_share
        grey = self.data.channels == 1
        window, stored = decode(
            file, corner, shape, on_gpu=decodes_on_gpu, hardware=hardware, sixteen_bits=grey
        )
        pixels = resize(window, self.data, **region)
        if self.on_gpu and not decodes_on_gpu:
            pixels = pixels.gpu()  # as 8 bits, a quarter of their size as float32
        if self.recolours:
            pixels = recolour(pixels, *others)
        if grey:
            pixels = fn.coord_transform(pixels, M=(augmentation.GREY / 257).tolist())
        layout = "HWC" if self.channels_last else "CHW"
        images = normalise(pixels, mirror, self.data, dtype=settings.dtype, layout=layout)
        return images, file.shape(dtype=types.INT64), stored

    def _run(self) -> "Batch | None":
        """Run DALI's pipeline; return the next batch of images and labels, or None at the end."""
        stream = torch.cuda.current_stream(self.device) if self.on_gpu else None
        try:
            images, lengths, sides = self.pipeline.run(stream)
        except StopIteration:
            return None
        except RuntimeError as error:
            raise self._why(error) from None
        each = self.in_flight.popleft()
        index, ids = self._index_of(each), each.examples
        stored = np.array(lengths.as_tensor())[:, 0], np.array(sides.as_tensor())
        self._check_files(*stored, each)
        tensor = from_dlpack(images.as_tensor())
        if not self.on_gpu:
            tensor = to_device(tensor, self.device)
        labels = arrays_to_device(index.labels(ids), self.device)
        if self.channels_last:
            tensor = tensor.permute(0, 3, 1, 2)
        if each.aspect:
            self._blacken(tensor, each)
        return tensor, labels

    def _blacken(self, images: torch.Tensor, each: MicroBatch) -> None:
        """Set pixels of rectangles outside of their image to black, as PIL does."""
        data, sizes = self.data, self._index_of(each).sizes(each.examples)
        side, ratio = each.side or data.image_size, each.crop_ratio or data.crop_ratio
        resized, corner = augmentation.evaluation_crops(sizes, side, ratio, each.aspect)
        begins, ends = np.maximum(-corner, 0), resized - corner
        exceeding = (begins > 0).any(1) | (ends < rectangle(side, each.aspect)).any(1)
        mean, std = (images.new_tensor(values)[:, None, None] for values in (data.mean, data.std))
        for i in np.flatnonzero(exceeding).tolist():
            (left, top), (right, bottom) = begins[i].tolist(), ends[i].tolist()
            inside = images[i, :, top:bottom, left:right].clone()
            images[i] = -mean / std
            images[i, :, top:bottom, left:right] = inside

    def _index_of(self, each: MicroBatch) -> ImageIndex:
        return self.indexes[each.split]

    def _next(self) -> "_Feed":
        """Return the next batch's DALI inputs (files, crops, flips) and mark it as in flight."""
        each, feed = next(self.requests)
        self.in_flight.append(each)
        return feed

    def _ahead(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, "_Feed"]]:
        """Yield each micro-batch with its DALI inputs (files, crops, flips), prepared ahead."""
        pending = deque[tuple[MicroBatch, Future[_Feed]]]()
        for each in passes:
            pending.append((each, self.readers.submit(self._feed, each)))
            if len(pending) == READ_AHEAD:
                first, feed = pending.popleft()
                yield first, feed.result()
        for first, feed in pending:
            yield first, feed.result()

    def _feed(self, each: MicroBatch) -> "_Feed":
        index, ids, side = self._index_of(each), each.examples, each.side or self.data.image_size
        try:
            sizes = index.sizes(ids)
            files = self._files(index, ids)
        except InputFailedError as error:
            raise explain_read_error(error, each, index, self.data.name) from None
        data = self.data
        parts = parts_in_epoch(data.augmentation, each.epoch, data.augmented_epochs)
        draw: dict[str, Any] = {"seed": self.seed, "epoch": each.epoch or 0}
        if "crop" in parts:
            ranges = {"area_range": data.crop_area, "aspect_range": data.crop_aspect}
            windows = augmentation.crop_windows(sizes, ids, **draw | ranges)
            regions = np.concatenate((np.zeros(sizes.shape), windows[:, 2:]), axis=1)
        else:
            windows = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
            ratio = each.crop_ratio or data.crop_ratio
            regions = augmentation.evaluation_regions(sizes, side, ratio, each.aspect)
        flips = "flip" in parts
        mirror = augmentation.flip_mask(ids, **draw) if flips else np.zeros(len(ids), bool)
        colours = (
            augmentation.colour_transforms(ids, **draw)
            if "colour" in parts
            else np.tile(augmentation.IDENTITY_COLOURS, (len(ids), 1))
        )
        return (
            files,
            _rows_first(windows[:, :2], np.int32),
            _rows_first(windows[:, 2:], np.int32),
            _rows_first(regions[:, :2], np.float32),
            _rows_first(regions[:, :2] + regions[:, 2:], np.float32),
            mirror.astype(np.int32),
            *(_matrices(colours) if self.recolours else ()),
            *([self._output_sizes(each)] if self.sizes_change else []),
        )

    def _output_sizes(self, each: MicroBatch) -> NDArray[np.float32]:
        """Return the (height, width) of each image of a micro-batch for DALI, in pixels."""
        width, height = rectangle(each.side or self.data.image_size, each.aspect)
        return np.tile(np.array([height, width], np.float32), (len(each.examples), 1))

    def _files(self, index: ImageIndex, ids: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return each image's path, or its file content if it is in a tar shard, for DALI."""
        if self.in_shards:
            contents = [index.read(example) for example in ids]
        else:
            # All at once, and as bytes: creating a Path for each would take a third of this
            # thread's time.
            root = os.fsencode(index.root) + b"/"
            contents = [root + path for path in index.paths(ids)]
        return [np.frombuffer(content, np.uint8) for content in contents]

    def _check_files(
        self, lengths: NDArray[np.int64], sides: NDArray[np.int32], each: MicroBatch
    ) -> None:
        """Raise InputFailedError for a file that has other bytes or pixels than in the index."""
        index, ids = self._index_of(each), each.examples
        # DALI decodes only as much of a file as the window needs, so it may not notice a truncated
        # file. It would read windows of the indexed size in another image.
        is_other = lengths != index.lengths(ids)
        is_other |= (sides[:, ::-1] != index.sizes(ids)).any(1)
        for example in ids[is_other]:
            try:
                load_image(index, example)
            except InputFailedError as error:
                raise explain_read_error(error, each, index, self.data.name) from None

    def _why(self, error: RuntimeError) -> InputFailedError:
        """Find the cause of a DALI failure; return an error naming the bad image or the batch."""
        images = [(each, example) for each in self.in_flight for example in each.examples]
        for each, example in images:
            index = self._index_of(each)
            try:
                load_image(index, example)
            except InputFailedError as failed:
                return explain_read_error(failed, each, index, self.data.name)
        # PIL reads all images, so DALI decodes each alone. If DALI cannot decode even a plain
        # image, the cause is not an image but, for example, a lack of memory.
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

    @unlimited_image_size()
    def _refused(self, each: MicroBatch, example: int, error: RuntimeError) -> InputFailedError:
        """Return the error for an image file that PIL can decode and DALI cannot."""
        index = self._index_of(each)
        kind = decoding_mismatch(Image.open(io.BytesIO(index.read(example))))
        why = f"PIL decodes it, and DALI fails with {error_summary(error)!r}"
        if kind:
            why += f": {kind}"
        unread = index.read_error(example, f"{why}; inputs=torchvision reads it")
        return explain_read_error(unread, each, index, self.data.name)

    def _stopped(self, error: RuntimeError) -> InputFailedError:
        """Return the error for a DALI failure that no single image is known to have caused."""
        if not self.in_flight:
            return InputFailedError(
                f"DALI stopped ({error_summary(error)}) before its first image; "
                "inputs=torchvision works without it"
            )
        each = self.in_flight[0]
        index = self._index_of(each)
        return InputFailedError(
            f"DALI stopped ({error_summary(error)}) in the batch of {len(each.examples)} "
            f"images needed {describe_step(each)}, {index.path(each.examples[0])} to "
            f"{index.path(each.examples[-1])}, each of which it decodes alone; resume with the "
            "same run_dir and a smaller inputs.prefetch or, in an evaluation, val_batch if it "
            "was out of memory, or with inputs=torchvision"
        )


def decode(
    file: Any, corner: Any, shape: Any, *, on_gpu: bool, hardware: float, sixteen_bits: bool = False
) -> tuple[Any, Any]:
    """Build DALI's operators that decode a window of an image to RGB pixels (height, width, 3).

    The (height, width) of the stored image is returned beside it. `corner` is the window's (top,
    left) and `shape` its (height, width), in pixels as stored. Pixels have 8 or 16 bits, each the
    whole range: DALI scales those of the other kind. Pixels outside the window are not decoded if
    the format allows it.
    """
    # peek_image_shape raises an error for a header that cannot be parsed, which has crashed the
    # decoder (DALI 2.4). The minimum is the window itself; it only makes the decoder wait for that
    # check.
    stored = fn.peek_image_shape(file, adjust_orientation=False, dtype=types.INT32)
    shape, sides = dali.math.min(shape, stored[:2]), stored[:2]
    options = {"device": "mixed", "hw_decoder_load": hardware} if on_gpu else {"device": "cpu"}
    window = fn.decoders.image_slice(
        file,
        corner,
        shape,
        axes=(0, 1),
        normalized_anchor=False,
        normalized_shape=False,
        output_type=types.RGB,
        dtype=types.UINT16 if sixteen_bits else types.UINT8,
        # PIL does not rotate by EXIF, and the published numbers are without it.
        adjust_orientation=False,
        # The CPU's default; the GPU's default is coarser.
        jpeg_fancy_upsampling=True,
        **options,
    )
    return window, sides


def decode_each(contents: Iterable[bytes], *, gpu: int | None) -> Iterator[NDArray[np.uint8]]:
    """Decode the bytes of each image file alone by DALI and yield RGB pixels (height, width, 3).

    It runs on the CPU or on the GPU of this index. Raises RuntimeError at the first file that DALI
    cannot decode.
    """
    feed: tuple[Any, ...] = ()
    pipeline = dali.Pipeline(
        batch_size=1,
        num_threads=1,
        device_id=gpu,
        prefetch_queue_depth=1,  # no prefetch, so an error is that of the last image fed
    )
    with pipeline:
        file, corner, shape = fn.external_source(source=lambda: feed, num_outputs=3, batch=True)
        window, _ = decode(file, corner, shape, on_gpu=gpu is not None, hardware=0)
        pipeline.set_outputs(window)
    for content in contents:
        whole = [np.zeros(2, np.int32)], [np.full(2, 2**20, np.int32)]
        feed = ([np.frombuffer(content, np.uint8)], *whole)
        (pixels,) = pipeline.run()
        image: NDArray[np.uint8] = np.array(pixels.as_cpu()[0])
        yield image


def error_summary(error: RuntimeError) -> str:
    """Return the message of a DALI error in one line, without its location in DALI's graph."""
    lines = str(error).rpartition("encountered:")[2].splitlines()
    texts = (line.strip() for line in lines if not line.startswith("Current pipeline object"))
    return " ".join(text for text in texts if text)[:200]


def resize(window: Any, data: Data, **region: Any) -> Any:
    """Build DALI's operator that resizes decoded images, or a region of each, to the input size.

    A `size` in the region is another one for each image.
    """
    return fn.resize(
        window,
        size=region.pop("size", (data.image_size, data.image_size)),
        interp_type=types.INTERP_CUBIC
        if data.augmentation == "fb_resnet_torch"
        else types.INTERP_TRIANGULAR,
        antialias=True,
        # Not rounded for one channel, of which each has up to 16 bits.
        dtype=types.UINT8 if data.channels == 3 else types.FLOAT,
        **region,
    )


def recolour(pixels: Any, of_pixel: Any, of_mean: Any, added: Any) -> Any:
    """Build DALI's operators that apply colour jitter to 8-bit RGB images, without clamping.

    Each pixel becomes the product of `of_pixel` and the pixel, plus the product of `of_mean` and
    the image's mean, plus `added`.
    """
    # All values that differ by image are arguments, since those may be on the CPU for operators on
    # a GPU.
    mean = fn.reductions.mean(pixels, axes=(0, 1), keep_dims=True)
    mixed = fn.coord_transform(pixels, M=of_pixel, T=added, dtype=types.FLOAT)
    return mixed + fn.coord_transform(mean, M=of_mean, dtype=types.FLOAT)


def _matrices(colours: NDArray[np.float64]) -> Iterator[NDArray[np.float32]]:
    """Convert colour jitter coefficients into the matrices and offsets of DALI's operators."""
    own, of_grey, of_mean = colours[:, :3].T[:, :, None, None]
    grey = np.tile(augmentation.GREY, (3, 1))
    for each in (own * np.eye(3) + of_grey * grey, of_mean * grey, 255 * colours[:, 3:]):
        yield each.astype(np.float32)


def normalise(pixels: Any, mirror: Any, data: Data, *, dtype: str, layout: str) -> Any:
    """Build DALI's operator that computes (pixel / 255 - mean) / std and mirrors marked images."""
    return fn.crop_mirror_normalize(
        pixels,
        mirror=mirror,
        mean=[255 * mean for mean in data.mean],
        std=[255 * std for std in data.std],
        dtype=DTYPES[dtype],
        output_layout=layout,
    )


def _rows_first(columns: NDArray[Any], kind: type) -> NDArray[Any]:
    """Convert (x, y) or (width, height) pairs into contiguous (y, x) pairs, the order of DALI."""
    return np.ascontiguousarray(columns[:, ::-1], dtype=kind)
