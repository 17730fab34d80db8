"""What is DALI's own: its decoder against PIL, and its GPU pipelines."""

import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import CUBIC, EDGE, within_bounds
from helpers.folders import DATA, make_folder, make_numbered, opened, recipe
from helpers.odd_images import HEIGHT, ONE_LEVEL, REFUSED, WIDTH, odd_images
from numpy.typing import NDArray
from PIL import Image
from test_loaders import odd_files

from lsgd.errors import InputFailed, Refused
from lsgd.inputs import open_inputs
from lsgd.inputs.index import index_file, write_index
from lsgd.prepare.scan import index_folder
from lsgd.rules import augmentation
from lsgd.rules.sampler import Pass

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


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_decodes_odd_images_exactly_as_pil() -> None:
    """Or but for one level, where PIL has more digits: CMYK, and what TIFF has of other colours."""
    refused = {name for names in REFUSED.values() for name in names}
    files = {name: content for name, content in odd_images().items() if name not in refused}
    images = [np.array(in_rgb(content)) for content in files.values()]
    whole = np.array([[0, 0, *image.shape[1::-1]] for image in images])
    found = decoded(list(files.values()), whole)
    apart = {
        name: int(np.abs(pixels.astype(int) - image).max())
        for name, image, pixels in zip(files, images, found, strict=True)
    }
    assert {name: levels for name, levels in apart.items() if levels} == dict.fromkeys(ONE_LEVEL, 1)


SIZES = [(1, 1), (1, 300), (3, 5), (17, 2), (33, 33), (64, 64), (333, 500), (1000, 700)]


def test_the_bounds_after_resizing_hold_at_every_size() -> None:
    """Worst is an edge that is white on black; 28 pixels are of a test, 224 of ImageNet."""
    from nvidia.dali import Pipeline, fn

    from lsgd.inputs.dali import resize

    windows = []
    for width, height in SIZES:
        frame = np.full((height, width, 3), 255, np.uint8)
        frame[1:-1, 1:-1] = 0
        noise = np.random.default_rng(0).integers(0, 2, (height, width, 3), np.uint8) * 255
        windows += [frame, 255 - frame, noise]
    largest = 0.0
    for side in (28, 224):
        pipeline = Pipeline(batch_size=len(windows), num_threads=2, device_id=None)
        with pipeline:
            batch = fn.external_source(source=lambda: windows, batch=True, layout="HWC")
            pipeline.set_outputs(resize(batch, replace(DATA, image_size=side)))
        (resized,) = pipeline.run()
        for window, pixels in zip(windows, resized, strict=True):
            image = Image.fromarray(window).resize((side, side), Image.Resampling.BILINEAR)
            levels = np.abs(np.array(pixels, np.float32) - np.array(image))
            within_bounds(torch.from_numpy(levels).permute(2, 0, 1))
            largest = max(largest, levels.max())
    assert largest > EDGE  # so that the bound of a corner is not one of something else


def test_the_bound_of_bicubic_holds_at_every_size() -> None:
    """Of the same frames and noise, of which the worst, measured, is 38."""
    from nvidia.dali import Pipeline, fn

    from lsgd.inputs.dali import resize

    windows = []
    for width, height in SIZES:
        frame = np.full((height, width, 3), 255, np.uint8)
        frame[1:-1, 1:-1] = 0
        noise = np.random.default_rng(0).integers(0, 2, (height, width, 3), np.uint8) * 255
        windows += [frame, noise]
    for side in (28, 224):
        data = replace(DATA, image_size=side, augmentation="fb_resnet_torch")
        pipeline = Pipeline(batch_size=len(windows), num_threads=2, device_id=None)
        with pipeline:
            batch = fn.external_source(source=lambda: windows, batch=True, layout="HWC")
            pipeline.set_outputs(resize(batch, data))
        (resized,) = pipeline.run()
        for window, pixels in zip(windows, resized, strict=True):
            image = Image.fromarray(window).resize((side, side), Image.Resampling.BICUBIC)
            assert np.abs(np.array(pixels, np.float32) - np.array(image)).max() < CUBIC


def test_says_what_it_is(tmp_path: Path) -> None:
    from nvidia import dali

    inputs = opened(make_folder(tmp_path / "root"), "dali")
    assert inputs.name == f"DALI {dali.__version__} on the CPU, 2 threads"
    assert opened(tmp_path / "root", "auto").name == inputs.name


def test_a_cut_that_no_window_needs_is_found(tmp_path: Path) -> None:
    """DALI decodes no further than the window goes, and would train on what is left."""
    root = make_numbered(tmp_path / "root", 3, (200, 200))
    data = replace(DATA, train_examples=3, val_examples=3, classes=3)
    bad = root / "train" / "n001" / "one.JPEG"
    length = bad.stat().st_size
    loaders = [opened(root, "dali", data) for _ in range(8)]
    bad.write_bytes(bad.read_bytes()[: length - 100])
    for epoch, inputs in enumerate(loaders):
        with pytest.raises(
            InputFailed, match=rf"{bad} cannot be read \(it has {length - 100} bytes"
        ):
            list(inputs.train([Pass(epoch, np.arange(3))]))


def believed(root: Path, example: int, size: tuple[int, int]) -> None:
    """An index that takes the image for a good one of this size, as older ones did."""
    rows = np.load(index_file(root, "train"))
    rows["width"][example], rows["height"][example] = size
    write_index(root, "train", rows.tolist())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gif", "#4'\": GIF is none of the formats that every loader reads"),
        ("tiff 1", "#3'\": TIFF with pixels of 1 is not read alike by every loader"),
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
    passes = [Pass(2, np.arange(i, i + 5), step=i // 5) for i in range(0, 20, 5)]
    with pytest.raises(InputFailed) as failure:
        list(opened(root, "dali", data).train(passes))
    message = str(failure.value)
    assert message.startswith(f"{bad} cannot be read (PIL decodes it and DALI does not, which says")
    assert f"{why}; inputs=torchvision reads it), needed in step 3 of epoch 3; " in message
    assert f"lsgd.prepare imagenet {root} --check" in message


def test_an_error_that_is_of_no_single_image_names_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as want of memory: 500 characters of DALI's graph helped nobody."""
    root = make_numbered(tmp_path / "root", 4)
    data = replace(DATA, train_examples=4, val_examples=4, classes=4)
    inputs = opened(root, "dali", data)
    batches = inputs.train([Pass(0, np.arange(2)), Pass(0, np.array([3, 2]), step=1)])
    next(batches)
    text = "Critical error in pipeline:\n" + "  File graph\n" * 40 + "encountered:\n\nNo memory.\n"

    def failing(stream: object) -> None:
        raise RuntimeError(text + "Current pipeline object is no longer valid.\n")

    monkeypatch.setattr(inputs.pipeline, "run", failing)
    with pytest.raises(InputFailed) as failure:
        next(batches)
    first, last = (root / "train" / f"n00{i}" / "one.JPEG" for i in (3, 2))
    assert str(failure.value).startswith(
        "DALI has stopped (No memory.) in the batch of 2 images needed in step 2 of epoch 1, "
        f"{first} to {last}, each of which it decodes by itself; resume with the same words"
    )


CRASHES = """
import sys
sys.path[:0] = sys.argv[1:2]
from pathlib import Path
import numpy as np
from helpers.folders import DATA, opened
from dataclasses import replace
from lsgd.errors import InputFailed
from lsgd.rules.sampler import Pass
root = Path(sys.argv[2])
data = replace(DATA, train_examples=120, val_examples=120, classes=120)
bad = root / "train" / "n070" / "one.JPEG"
bad.write_bytes(bytes(bad.stat().st_size))
good = Pass(0, np.delete(np.arange(120), 70))
for _ in range(4):
    try:
        inputs = opened(root, "dali", data, "val_batch=120")
        list(inputs.train([good] * 5 + [Pass(0, np.arange(120))] * 3))
    except InputFailed as failure:
        print(failure)
"""


@pytest.mark.slow
def test_a_header_that_cannot_be_parsed_does_not_crash(tmp_path: Path) -> None:
    """DALI's decoder alone was seen to end the process in four of five tries."""
    root = make_numbered(tmp_path / "root", 120, (100, 100))
    here = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, here, str(root)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("n070/one.JPEG cannot be read (it is no image)") == 4


@pytest.mark.gpu
@pytest.mark.parametrize(
    "way", ["inputs.hardware_share=0", "inputs.hardware_share=1", "inputs.decode_on=cpu"]
)
def test_a_gpu_gives_nearly_the_same_pixels(tmp_path: Path, way: str) -> None:
    """nvJPEG's inverse cosine transform rounds otherwise than libjpeg's, in either decoder."""
    root = make_folder(tmp_path / "root")
    data = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3)
    passes = [Pass(epoch, np.arange(12)) for epoch in range(3)]
    words = ["device=cuda", way, "channels_last=true"]
    gpu = open_inputs(recipe(root, "dali", data, *words), torch.device("cuda", 0))
    for (expected, labels), (images, theirs) in zip(
        opened(root, "dali", data).train(passes), gpu.train(passes), strict=True
    ):
        assert images.is_cuda
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.tolist() == theirs.tolist()
        levels = 255 * (images.cpu() - expected).abs()
        assert levels.mean() < 2


def test_decoding_on_a_gpu_needs_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"decode_on=gpu, but this run is on the CPU; write"):
        opened(make_folder(tmp_path / "root"), "dali", DATA, "inputs.decode_on=gpu")
