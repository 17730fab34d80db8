"""Images of one channel and of 16 bits, by both loaders, against PIL's own floats."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import assert_within_bounds
from helpers.folders import DATA, LOADERS, open_folder_inputs, recipe
from helpers.odd_images import encoded, photo
from PIL import Image

from lsgd.errors import UsageError
from lsgd.inputs import open_inputs
from lsgd.inputs.decoding import convert_pixels, decoding_mismatch
from lsgd.prepare.indexing import index_folder
from lsgd.rules.sampler import MicroBatch

SIZE = (61, 47)
DEEP = np.random.default_rng(0).integers(20_000, 20_400, (47, 61), dtype=np.uint16)
"""Grey pixels of 16 bits that differ by less than two levels of 8 bits, as in a radiograph."""
GREY = replace(DATA, channels=1, mean=[0.0], std=[1 / 255])
"""The settings of one channel in which normalised pixels are levels of 0 to 255."""


def big_endian_tiff() -> bytes:
    """Return DEEP as a big-endian TIFF without compression."""
    tags = [(256, 4, 61), (257, 4, 47), (258, 3, 16), (259, 3, 1), (262, 3, 1), (273, 4, 122)]
    tags += [(277, 3, 1), (278, 4, 47), (279, 4, DEEP.nbytes)]
    fields = b"".join(
        tag.to_bytes(2) + kind.to_bytes(2) + (1).to_bytes(4)
        + (value.to_bytes(4) if kind == 4 else value.to_bytes(2) + b"\0\0")
        for tag, kind, value in tags
    )  # fmt: skip
    head = b"MM\0*" + (8).to_bytes(4) + len(tags).to_bytes(2) + fields + b"\0\0\0\0"
    assert len(head) == 122
    return head + DEEP.astype(">u2").tobytes()


FILES = {
    "a.png": encoded(Image.fromarray(DEEP), "PNG"),
    "b.tif": encoded(Image.fromarray(DEEP), "TIFF", compression="tiff_lzw"),
    "c.tif": big_endian_tiff(),
    "d.png": encoded(photo("L"), "PNG"),
    "e.png": encoded(photo("P"), "PNG"),
    "f.jpg": encoded(photo("CMYK"), "JPEG"),
    "g.png": encoded(photo("1"), "PNG"),
    "h.jpg": encoded(photo("RGB"), "JPEG"),
    "i.png": encoded(photo("LA"), "PNG"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("grey") / "root"
    for split in ("train", "val"):
        for label in ("one", "two"):
            folder = root / split / label
            folder.mkdir(parents=True)
            for name, content in FILES.items():
                (folder / name).write_bytes(content)
    index_folder(root)
    return root


def floats(name: str) -> Image.Image:
    """Return PIL's own float image of a file, from the levels that were written into it."""
    if name in ("a.png", "b.tif", "c.tif"):
        return Image.fromarray((DEEP / 257).astype(np.float32))
    red, green, blue = np.moveaxis(
        np.asarray(Image.open(io.BytesIO(FILES[name])).convert("RGB"), np.float64), 2, 0
    )
    return Image.fromarray((0.299 * red + 0.587 * green + 0.114 * blue).astype(np.float32))


@pytest.mark.parametrize("loader", LOADERS)
def test_one_channel_is_grey_with_all_its_bits(root: Path, loader: str) -> None:
    """DALI and PIL differ at the edges of a crop alone, as in colours, and by one level of CMYK."""
    data = replace(GREY, train_examples=18, val_examples=18, classes=2)
    inputs = open_folder_inputs(root, loader, data)
    each = MicroBatch(None, np.arange(9), range(0), 0, "val")
    ((images, labels),) = inputs.evaluation([each])
    assert images.shape == (9, 1, 28, 28)
    assert images.dtype == torch.float32
    assert labels.tolist() == [0] * 9
    for name, image in zip(FILES, images, strict=True):
        whole = floats(name)
        short = round(28 * 256 / 224)
        width, height = (short * length // min(SIZE) for length in SIZE)
        resized = whole.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - 28) / 2), round((height - 28) / 2)
        expected = np.asarray(resized.crop((left, top, left + 28, top + 28)))
        apart = np.abs(image[0].numpy() - expected).max()
        # The region in stored pixels is rounded to float32 by DALI.
        assert apart < (1 if name == "f.jpg" else 0.02), name
        if name[0] in "abc":  # 8 bits would leave three levels
            assert len(np.unique(image.numpy().round(4))) > 100


@pytest.mark.slow
@pytest.mark.dali
def test_loaders_agree_on_augmented_grey_images(root: Path) -> None:
    """Crops and flips of one channel, decoded in another process too, are within the bounds."""
    data = replace(GREY, train_examples=18, val_examples=18, classes=2)
    each = [MicroBatch(epoch, np.arange(18)) for epoch in range(3)]
    own = open_inputs(recipe(root, "torchvision", data, "inputs.decoders=1"), torch.device("cpu"))
    by_dali = open_folder_inputs(root, "dali", data)
    for (first, _), (second, _) in zip(own.train(each), by_dali.train(each), strict=True):
        assert_within_bounds((first - second).abs())


def test_sixteen_bits_become_rgb_by_their_range() -> None:
    levels = np.array([[0, 128, 129, 257 * 7, 65535]], np.uint16)
    rgb = np.asarray(convert_pixels(Image.fromarray(levels), 3))
    assert rgb[0].tolist() == [[v] * 3 for v in (0, 0, 1, 7, 255)]
    grey = np.asarray(convert_pixels(Image.fromarray(levels), 1))
    assert grey[0, -1] == 255
    assert grey[0, 1] == np.float32(128) / np.float32(257)


def test_files_that_a_loader_reads_otherwise_are_refused_by_name() -> None:
    plain, photometric = encoded(Image.fromarray(DEEP), "TIFF"), b"\x06\x01\x03\0\x01\0\0\0"
    assert decoding_mismatch(Image.open(io.BytesIO(plain))) is None
    for content, name in (
        (encoded(Image.fromarray(DEEP.astype(np.float32)), "TIFF"), "F;32F"),
        (encoded(Image.fromarray(DEEP.astype(np.int32)), "TIFF"), "I;32S"),
        (plain.replace(photometric + b"\1", photometric + b"\0"), "white as 0"),
    ):
        assert name in str(decoding_mismatch(Image.open(io.BytesIO(content))))


def test_channels_that_files_do_not_give_are_refused(root: Path) -> None:
    two = replace(GREY, channels=2, mean=[0.5] * 2, std=[1.0] * 2)
    with pytest.raises(UsageError, match=r"data\.channels=2, .* write data\.channels=3 or"):
        open_folder_inputs(root, "torchvision", two)
    with pytest.raises(UsageError, match=r"changes colours.* write data\.augmentation=crop_flip"):
        open_folder_inputs(root, "torchvision", replace(GREY, augmentation="fb_resnet_torch"))
