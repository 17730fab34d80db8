"""Odd images are read alike by both loaders, or refused by both, with their names."""

import io
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.bounds import assert_within_bounds
from helpers.folders import DATA, LOADERS, open_folder_inputs, recipe
from helpers.micro_batches import evaluation_micro_batches
from helpers.odd_images import (
    HEADER_ONLY,
    ONE_LEVEL,
    REFUSED,
    encoded,
    file_name,
    odd_images,
    photo,
)
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lsgd.errors import InputFailedError
from lsgd.inputs import decoding, open_inputs
from lsgd.inputs.decoder import ImageFiles
from lsgd.inputs.decoding import centre_crop, crop, flip_horizontally, load_image
from lsgd.inputs.index import ImageIndex, index_file
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Data
from lsgd.rules.sampler import MicroBatch
from lsgd.vision import transforms


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Data, dict[str, int]]:
    """A folder of one class, to train and to validate; and the id of each odd image."""
    root = tmp_path_factory.mktemp("odd") / "root"
    folder = root / "train" / "n00"
    folder.mkdir(parents=True)
    (root / "val").symlink_to("train")
    for name, content in odd_images().items():
        (folder / file_name(name)).write_bytes(content)
    index_folder(root)
    index = ImageIndex(root, index_file(root, "train"))
    paths = [Path(index.path(example)).stem for example in range(len(index))]
    number = len(index)
    data = replace(DATA, train_examples=number, val_examples=number, classes=1)
    plain = replace(data, mean=[0.0] * 3, std=[1.0] * 3)
    return root, plain, {name: example for example, name in enumerate(paths)}


@pytest.mark.slow
@pytest.mark.dali
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_odd_images_are_read_alike(odd: tuple[Path, Data, dict[str, int]]) -> None:
    """Whole, and in windows of two epochs; exactly before the resizing: see test_dali.py."""
    root, data, ids = odd
    refused = {name for names in REFUSED.values() for name in names}
    names = sorted(ids.keys() - refused)
    examples = np.array([ids[name] for name in names])
    batch = f"val_batch={len(names)}"
    loaders = [open_folder_inputs(root, loader, data, batch) for loader in ("torchvision", "dali")]
    passes = [MicroBatch(epoch, examples) for epoch in range(2)]
    for pairs in (
        zip(*(inputs.train(passes) for inputs in loaders), strict=True),
        zip(
            *(inputs.evaluation(evaluation_micro_batches(examples)) for inputs in loaders),
            strict=True,
        ),
    ):
        for (expected, _), (images, _) in pairs:
            for name, one, other in zip(names, expected, images, strict=True):
                assert_within_bounds(255 * (one - other).abs(), decoding=name in ONE_LEVEL)


@pytest.mark.parametrize("loader", LOADERS)
def test_the_others_are_refused_by_name(
    odd: tuple[Path, Data, dict[str, int]], loader: str
) -> None:
    """Of each kind a few, since the index refuses them all by one look: prepare/test_check.py."""
    root, data, ids = odd
    made = recipe(root, loader, data, "inputs.decoders=0")
    for name in [*HEADER_ONLY, *(name for names in REFUSED.values() for name in names[:3])]:
        # A loader ends with its first failure, as the run does.
        inputs = open_inputs(made, torch.device("cpu"))
        path = root / "train" / "n00" / file_name(name)
        with pytest.raises(
            InputFailedError, match=re.escape(f"{path} cannot be read (")
        ) as failure:
            list(inputs.train([MicroBatch(0, np.array([ids[name]]))]))
        if name not in HEADER_ONLY:
            assert "not a complete image that every loader decodes the same way" in str(
                failure.value
            )


@given(
    size=st.tuples(*[st.integers(1, 90)] * 2),
    side=st.integers(1, 60),
    bicubic=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_pixels_are_those_of_torchvision(
    size: tuple[int, int], side: int, bicubic: bool, seed: int
) -> None:
    """Bit by bit, of images of any size, where decoders do without it."""
    generator = np.random.default_rng(seed)
    image = Image.fromarray(generator.integers(0, 256, (*size[::-1], 3), np.uint8))
    left, top = (int(generator.integers(length)) for length in size)
    width = int(generator.integers(1, size[0] - left + 1))
    height = int(generator.integers(1, size[1] - top + 1))
    window = np.array([left, top, width, height])
    theirs, modes = transforms.functional, transforms.InterpolationMode
    mode = modes.BICUBIC if bicubic else modes.BILINEAR
    cropped = theirs.resized_crop(image, top, left, height, width, [side, side], mode)
    assert_same(crop(image, window, side, bicubic=bicubic), cropped)
    assert_same(flip_horizontally(image), theirs.hflip(image))
    resized = theirs.resize(image, [round(side * 256 / 224)], mode)
    centre = theirs.center_crop(resized, [side, side])
    assert_same(centre_crop(image, side, bicubic=bicubic), centre)


@pytest.mark.parametrize("size", [(60000, 3), (3, 60000), (10**6, 1)])
def test_no_more_of_a_long_image_is_resized_than_is_evaluated(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torchvision resizes to 224 pixels would be of 5 million times 256, and take 4.7 GiB."""
    made: list[tuple[int, int]] = []

    def resize(image: Image.Image, size: tuple[int, int], *rest: Any, **options: Any) -> Any:
        made.append(size)
        return resize_of_pil(image, size, *rest, **options)

    resize_of_pil = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", resize)
    rows = np.arange(size[1], dtype=np.uint8)[:, None], np.arange(size[0], dtype=np.uint8)[None]
    image = Image.fromarray(rows[0] + rows[1]).convert("RGB")
    assert centre_crop(image, 224).size == (224, 224)
    assert all(width * height <= decoding.MAX_RESIZED_PIXELS for width, height in made)


@given(
    size=st.tuples(*[st.integers(1, 90)] * 2),
    side=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_evaluated_part_alone_is_within_two_levels(
    size: tuple[int, int], side: int, seed: int
) -> None:
    """Of which PIL rounds one as it resizes the width, and one the height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    image, most = Image.fromarray(pixels), decoding.MAX_RESIZED_PIXELS
    whole = np.asarray(centre_crop(image, side), np.int64)
    try:
        decoding.MAX_RESIZED_PIXELS = 0
        part = np.asarray(centre_crop(image, side), np.int64)
    finally:
        decoding.MAX_RESIZED_PIXELS = most
    assert abs(part - whole).max() <= 2


@pytest.mark.slow
def test_pil_s_own_limit_neither_warns_nor_refuses(tmp_path: Path) -> None:
    """Of 90 million pixels it warns; a window of an image is checked too, as it is cut out.

    The limit is that of the whole process, which may be another program's, and is given back.
    """
    (tmp_path / "train/n00").mkdir(parents=True)
    (tmp_path / "val").symlink_to("train")
    Image.new("1", (90_000, 1000)).save(tmp_path / "train/n00/a.png", compress_level=1)
    index_folder(tmp_path)
    index = ImageIndex(tmp_path, index_file(tmp_path, "train"))
    files = ImageFiles(
        replace(DATA, image_size=3, augmentation="crop_flip"),
        {"train": index, "val": index},
        seed=0,
    )
    pixels = np.empty((1, 3, 3, 3), np.uint8)
    limit = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings(action="error"):
        files.decode(MicroBatch(0, np.array([0])), pixels)
        files.decode(MicroBatch(None, np.array([0])), pixels)
        assert load_image(index, 0).size == (90_000, 1000)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_a_palette_with_transparency_is_read_without_a_warning_of_pil() -> None:
    """Each decoding process would print one; the colours are those without the transparency."""
    stored = encoded(photo("P"), "PNG", transparency=bytes([0, 128] * 25))
    opaque = np.asarray(Image.open(io.BytesIO(stored)).convert("RGBA"))[..., :3]
    with warnings.catch_warnings(action="error"):
        image = decoding.convert_pixels(Image.open(io.BytesIO(stored)), 3)
    np.testing.assert_array_equal(np.asarray(image), opaque)


def test_an_image_of_another_size_than_indexed_is_not_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "train/n00"
    folder.mkdir(parents=True)
    (tmp_path / "val").symlink_to("train")
    small, large = encoded(photo(), "JPEG"), odd_images()["jpeg frame 65500"]
    (folder / "a.jpg").write_bytes(small.ljust(len(large), b"."))
    index_folder(tmp_path)
    (folder / "a.jpg").write_bytes(large)
    with pytest.raises(InputFailedError, match="it has 65500 x 65500 pixels, and had 61 x 47 when"):
        load_image(ImageIndex(tmp_path, index_file(tmp_path, "train")), 0)


def assert_same(ours: Image.Image, theirs: Image.Image) -> None:
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
