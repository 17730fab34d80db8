"""A loader with DALI's own reader, shuffle buffer and random crops, for comparison with lsgd's.

lsgd's DALI pipeline is compared with it on equal files, threads, crop distribution and resize.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from nvidia import dali
from nvidia.dali import fn, types
from torch.utils.dlpack import from_dlpack

from lsgd.bench.loaders import Loader, LoaderSetting
from lsgd.errors import UsageError
from lsgd.inputs import Batch
from lsgd.inputs.dali import normalise, resize
from lsgd.job.device import is_nvidia
from lsgd.rules import augmentation


def dali_reader(common: LoaderSetting, batches: int) -> Loader:
    """Return a loader of training images by DALI's own reader, of `batches` batches per round.

    Raises UsageError for file names that it does not take.
    """
    settings, device = common.recipe.inputs, common.device
    on_gpu = is_nvidia(device) and settings.decode_on != "cpu"
    pipeline = dali.Pipeline(
        batch_size=common.batch,
        num_threads=max(1, common.decoders),
        device_id=(device.index or 0) if on_gpu else None,
        prefetch_queue_depth=settings.prefetch,
        seed=common.recipe.seed,
    )
    with pipeline:
        pipeline.set_outputs(*_graph(common, on_gpu))
    left = 0

    def before_batch() -> None:
        nonlocal left
        if left == 0:
            raise StopIteration
        left -= 1

    # DALI calls this before it starts a batch. DALI's reader is endless: without this it would
    # prefetch while other loaders are measured, and its first batches would cost nothing.
    pipeline.iter_setup = before_batch
    pipeline.build()

    def batches_of_round(number: int) -> Iterator[Batch]:
        nonlocal left
        left = batches
        pipeline.reset()
        stream = torch.cuda.current_stream(device) if is_nvidia(device) else None
        for _ in range(batches + 1):
            try:
                images, labels = pipeline.run(stream)
            except StopIteration:
                return
            pixels = from_dlpack(images.as_tensor()).to(device, non_blocking=True)
            yield pixels, from_dlpack(labels.as_tensor())[:, 0]

    return batches_of_round


def _graph(common: LoaderSetting, on_gpu: bool) -> tuple[Any, Any]:
    """Build DALI's graph that reads, crops and normalises images; return images and labels."""
    data, settings, index = common.recipe.data, common.recipe.inputs, common.index
    names = [index.path(example) for example in range(len(index))]
    if odd := [name for name in names if name != name.encode(errors="replace").decode()]:
        raise UsageError(f"it takes file names in UTF-8, and {odd[0]!a} is not; rename the file")
    files, labels = fn.readers.file(
        files=names,
        labels=index.labels(np.arange(len(index))).tolist(),
        random_shuffle=True,
    )
    options: dict[str, Any] = {}
    if on_gpu:
        options = {"device": "mixed", "hw_decoder_load": settings.hardware_share}
    cropped = fn.decoders.image_random_crop(
        files,
        random_area=data.crop_area,
        random_aspect_ratio=data.crop_aspect,
        num_attempts=augmentation.MAX_TRIES,
        output_type=types.RGB,
        adjust_orientation=False,
        jpeg_fancy_upsampling=True,
        **options,
    )
    images = normalise(
        resize(cropped, data), fn.random.coin_flip(), data, dtype=settings.dtype, layout="CHW"
    )
    return images, labels
