"""What is DALI's own: its decoder against PIL, and its GPU pipelines."""

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import CUBIC, EDGE, assert_within_bounds
from helpers.folders import DATA, make_folder, make_numbered, open_folder_inputs, recipe
from helpers.odd_images import HEIGHT, ONE_LEVEL, REFUSED, WIDTH, odd_images
from numpy.typing import NDArray
from PIL import Image

from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs import open_inputs
from lsgd.inputs.decoding import convert_pixels
from lsgd.inputs.index import index_file, write_index
from lsgd.prepare.indexing import index_folder
from lsgd.rules import augmentation
from lsgd.rules.sampler import MicroBatch

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
        pipeline.set_outputs(decode(file, corner, shape, on_gpu=False, hardware=0)[0])
    (pixels,) = pipeline.run()
    for image in pixels:
        yield np.array(image)


def in_rgb(content: bytes) -> Image.Image:
    return convert_pixels(Image.open(io.BytesIO(content)), 3)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_decodes_odd_images_exactly_as_pil() -> None:
    """Whole and in windows, or but for one level, where PIL has more digits: CMYK, and what TIFF
    has of other colours."""
    refused = {name for names in REFUSED.values() for name in names}
    files = {name: content for name, content in odd_images().items() if name not in refused}
    images = [np.array(in_rgb(content)) for content in files.values()]
    sizes = np.array([image.shape[1::-1] for image in images])
    whole = np.concatenate((np.zeros_like(sizes), sizes), axis=1)
    ids = np.arange(len(sizes))
    for windows in (whole, augmentation.crop_windows(sizes, ids, seed=3, epoch=0)):
        apart = {}
        for name, image, (left, top, width, height), pixels in zip(
            files, images, windows.tolist(), decoded(list(files.values()), windows), strict=True
        ):
            expected = image[top : top + height, left : left + width].astype(int)
            apart[name] = int(np.abs(pixels - expected).max())
        assert {name for name, levels in apart.items() if levels} <= {*ONE_LEVEL}
        assert max(apart.values()) == 1


SIZES = [(1, 1), (1, 300), (3, 5), (17, 2), (33, 33), (64, 64), (333, 500), (1000, 700)]


@pytest.mark.parametrize("augmentation", ["crop_flip", "fb_resnet_torch"])
def test_the_bounds_after_resizing_hold_at_every_size(augmentation: str) -> None:
    """Worst is an edge that is white on black, and of bicubic, measured, 38 of those 93; 28 pixels
    are of a test, 224 of ImageNet."""
    from nvidia.dali import Pipeline, fn

    from lsgd.inputs.dali import resize

    bicubic = augmentation == "fb_resnet_torch"
    windows = []
    for width, height in SIZES:
        frame = np.full((height, width, 3), 255, np.uint8)
        frame[1:-1, 1:-1] = 0
        noise = np.random.default_rng(0).integers(0, 2, (height, width, 3), np.uint8) * 255
        windows += [frame, 255 - frame, noise]
    largest = 0.0
    for side in (28, 224):
        data = replace(DATA, image_size=side, augmentation=augmentation)
        pipeline = Pipeline(batch_size=len(windows), num_threads=2, device_id=None)
        with pipeline:
            batch = fn.external_source(source=lambda: windows, batch=True, layout="HWC")
            pipeline.set_outputs(resize(batch, data))
        (resized,) = pipeline.run()
        way = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
        for window, pixels in zip(windows, resized, strict=True):
            image = Image.fromarray(window).resize((side, side), way)
            levels = np.abs(np.array(pixels, np.float32) - np.array(image))
            if not bicubic:
                assert_within_bounds(torch.from_numpy(levels).permute(2, 0, 1))
            largest = max(largest, levels.max())
    # Above, so that the bound of a corner is not one of something else.
    assert largest < CUBIC if bicubic else largest > EDGE


def test_says_what_it_is(tmp_path: Path) -> None:
    from nvidia import dali

    inputs = open_folder_inputs(make_folder(tmp_path / "root"), "dali")
    assert inputs.name == f"DALI {dali.__version__} on the CPU, 2 threads"
    assert open_folder_inputs(tmp_path / "root", "auto").name == inputs.name


@pytest.mark.slow
def test_a_cut_that_no_window_needs_is_found(tmp_path: Path) -> None:
    """DALI decodes no further than the window goes, and would train on what is left."""
    root = make_numbered(tmp_path / "root", 3, (200, 200))
    data = replace(DATA, train_examples=3, val_examples=3, classes=3)
    bad = root / "train" / "n001" / "one.JPEG"
    length = bad.stat().st_size
    loaders = [open_folder_inputs(root, "dali", data) for _ in range(8)]
    bad.write_bytes(bad.read_bytes()[: length - 100])
    for epoch, inputs in enumerate(loaders):
        with pytest.raises(
            InputFailedError, match=rf"{bad} cannot be read \(it has {length - 100} bytes"
        ):
            list(inputs.train([MicroBatch(epoch, np.arange(3))]))


def test_an_image_of_other_sides_is_found(tmp_path: Path) -> None:
    """Rotated in place, with as many bytes; DALI would decode a window of the indexed size."""
    root = make_numbered(tmp_path / "root", 3, (20, 32))
    bad = root / "val" / "n001" / "one.bmp"
    image = Image.open(bad.with_suffix(".JPEG"))
    bad.with_suffix(".JPEG").unlink()
    image.save(bad)
    index_folder(root)
    length = bad.stat().st_size
    image.rotate(90, expand=True).save(bad)
    assert bad.stat().st_size == length
    data = replace(DATA, train_examples=3, val_examples=3, classes=3)
    inputs = open_folder_inputs(root, "dali", data)
    sentence = rf"{bad} cannot be read \(it has 20 x 32 pixels, and had 32 x 20 when it was indexed"
    with pytest.raises(InputFailedError, match=sentence):
        list(inputs.evaluation([MicroBatch(None, np.arange(3), split="val")]))


def believed(root: Path, example: int, size: tuple[int, int]) -> None:
    """An index that takes the image for a good one of this size, as older ones did."""
    rows = np.load(index_file(root, "train"))
    rows["width"][example], rows["height"][example] = size
    write_index(root, "train", rows.tolist())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tiff 1", "#3'\": TIFF with pixels of 1 is not decoded the same way by every loader"),
        ("png sum wrong", "Failed to decode sample #0 :'"),
    ],
)
def test_what_pil_reads_and_dali_does_not_is_named(tmp_path: Path, name: str, why: str) -> None:
    root = make_numbered(tmp_path / "root", 20)
    bad = root / "train" / "n013" / "one.JPEG"
    bad.write_bytes(odd_images()[name])
    index_folder(root)
    believed(root, 13, (WIDTH, HEIGHT))
    data = replace(DATA, train_examples=20, val_examples=20, classes=20)
    passes = [MicroBatch(2, np.arange(i, i + 5), step=i // 5) for i in range(0, 20, 5)]
    with pytest.raises(InputFailedError) as failure:
        list(open_folder_inputs(root, "dali", data).train(passes))
    message = str(failure.value)
    assert message.startswith(f"{bad} cannot be read (PIL decodes it, and DALI fails with")
    assert f"{why}; inputs=torchvision reads it), needed in step 3 of epoch 3; " in message
    assert f"lsgd.prepare folder {root} --check" in message


def test_an_error_that_is_of_no_single_image_names_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as want of memory, of which DALI tells behind 500 characters of its graph."""
    root = make_numbered(tmp_path / "root", 4)
    data = replace(DATA, train_examples=4, val_examples=4, classes=4)
    inputs = open_folder_inputs(root, "dali", data)
    batches = inputs.train([MicroBatch(0, np.arange(2)), MicroBatch(0, np.array([3, 2]), step=1)])
    next(batches)
    text = "Critical error in pipeline:\n" + "  File graph\n" * 40 + "encountered:\n\nNo memory.\n"

    def failing(stream: object) -> None:
        raise RuntimeError(text + "Current pipeline object is no longer valid.\n")

    monkeypatch.setattr(inputs.pipeline, "run", failing)
    with pytest.raises(InputFailedError) as failure:
        next(batches)
    first, last = (root / "train" / f"n00{i}" / "one.JPEG" for i in (3, 2))
    assert str(failure.value).startswith(
        "DALI stopped (No memory.) in the batch of 2 images needed in step 2 of epoch 1, "
        f"{first} to {last}, each of which it decodes alone; resume with the same run_dir"
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    "way", ["inputs.hardware_share=0", "inputs.hardware_share=1", "inputs.decode_on=cpu"]
)
def test_a_gpu_gives_nearly_the_same_pixels(tmp_path: Path, way: str) -> None:
    """nvJPEG's inverse cosine transform rounds otherwise than libjpeg's, in either decoder."""
    root = make_folder(tmp_path / "root")
    data = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3)
    passes = [MicroBatch(epoch, np.arange(12)) for epoch in range(3)]
    words = ["device=cuda", way, "channels_last=true"]
    gpu = open_inputs(recipe(root, "dali", data, *words), torch.device("cuda", 0))
    for (expected, labels), (images, theirs) in zip(
        open_folder_inputs(root, "dali", data).train(passes), gpu.train(passes), strict=True
    ):
        assert images.is_cuda
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.tolist() == theirs.tolist()
        levels = 255 * (images.cpu() - expected).abs()
        assert levels.mean() < 2


def test_decoding_on_a_gpu_needs_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"decode_on=gpu, but this run is on the CPU; write"):
        open_folder_inputs(make_folder(tmp_path / "root"), "dali", DATA, "inputs.decode_on=gpu")
