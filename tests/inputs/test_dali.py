"""What is DALI's own: its decoder against PIL, and its GPU pipelines."""

import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from lsgd import augmentation
from lsgd.inputs import open_inputs
from lsgd.sampler import Pass

sys.path.insert(0, str(Path(__file__).parent))
from folders import DATA, make_folder, opened, recipe
from test_loaders import odd_files

pytestmark = pytest.mark.dali


def decoded(contents: list[bytes], windows: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    """What our graph makes of windows (left, top, width, height) of these files, unresized."""
    from nvidia.dali import Pipeline, fn

    from lsgd.inputs.dali import decode

    def batch() -> tuple[object, ...]:
        corners = np.ascontiguousarray(windows[:, 1::-1], np.int32)
        shapes = np.ascontiguousarray(windows[:, :1:-1], np.int32)
        return [np.frombuffer(content, np.uint8) for content in contents], corners, shapes

    pipeline = Pipeline(batch_size=len(contents), num_threads=2, device_id=None)
    with pipeline:
        file, corner, shape = fn.external_source(source=batch, num_outputs=3, batch=True)
        pipeline.set_outputs(decode(file, corner, shape, on_gpu=False, hardware=0))
    (pixels,) = pipeline.run()
    for image in pixels:
        yield np.array(image)


def in_rgb(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


@pytest.mark.data
def test_decodes_windows_of_odd_files_exactly_as_pil(test_data: Path) -> None:
    """Gray, CMYK, progressive, PNG called JPEG, all chroma subsamplings, EXIF-rotated, tiny, huge:
    whole and in windows of two epochs, every pixel."""
    files = odd_files(test_data)
    contents, images = list(files.values()), [in_rgb(content) for content in files.values()]
    sizes = np.array([image.size for image in images])
    whole = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
    ids = np.arange(len(sizes))
    drawn = [augmentation.crop_windows(sizes, ids, seed=3, epoch=epoch) for epoch in range(2)]
    for windows in (whole, *drawn):
        found = decoded(contents, windows)
        for name, image, (left, top, width, height), pixels in zip(
            files, images, windows.tolist(), found, strict=True
        ):
            expected = np.array(image.crop((left, top, left + width, top + height)))
            assert np.array_equal(pixels, expected), name


@pytest.mark.data
@pytest.mark.slow
def test_decodes_windows_of_all_real_files_exactly_as_pil(test_data: Path) -> None:
    files = sorted((test_data / "imagenet-sample").glob("*/*.JPEG"))
    assert len(files) == 569
    contents = [file.read_bytes() for file in files]
    images = [in_rgb(content) for content in contents]
    windows = augmentation.crop_windows(
        np.array([image.size for image in images]), np.arange(569), seed=1, epoch=0
    )
    for image, (left, top, width, height), pixels in zip(
        images, windows.tolist(), decoded(contents, windows), strict=True
    ):
        assert np.array_equal(pixels, image.crop((left, top, left + width, top + height)))


def test_says_what_it_is(tmp_path: Path) -> None:
    from nvidia import dali

    inputs = opened(make_folder(tmp_path / "root"), "dali")
    assert inputs.name == f"DALI {dali.__version__} on the CPU, 2 threads"
    assert opened(tmp_path / "root", "auto").name == inputs.name


@pytest.mark.gpu
@pytest.mark.parametrize("hardware", [0, 1])
def test_a_gpu_gives_nearly_the_same_pixels(tmp_path: Path, hardware: int) -> None:
    """nvJPEG's inverse cosine transform rounds otherwise than libjpeg's, in either decoder."""
    root = make_folder(tmp_path / "root")
    data = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3)
    passes = [Pass(epoch, np.arange(12), (12,)) for epoch in range(3)]
    words = ["device=cuda", f"inputs.hardware_share={hardware}", "channels_last=true"]
    gpu = open_inputs(recipe(root, "dali", data, *words), torch.device("cuda", 0))
    for (expected, labels), (images, theirs) in zip(
        opened(root, "dali", data).train(passes), gpu.train(passes), strict=True
    ):
        assert images.is_cuda
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.tolist() == theirs.tolist()
        levels = 255 * (images.cpu() - expected).abs()
        assert levels.mean() < 2
