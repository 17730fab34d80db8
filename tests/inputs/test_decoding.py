"""Odd images are read alike by both loaders, or refused by both, with their names."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import within_bounds
from helpers.folders import DATA, LOADERS, opened, recipe
from helpers.odd_images import HEADER_ONLY, ONE_LEVEL, REFUSED, file_name, odd_images
from helpers.passes import evaluating
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lsgd.errors import InputFailed
from lsgd.inputs import open_inputs
from lsgd.inputs.decoding import centre_crop, crop, mirrored
from lsgd.inputs.index import Index, index_file
from lsgd.prepare.scan import index_folder
from lsgd.recipe import Data
from lsgd.rules.sampler import Pass
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
    index = Index(root, index_file(root, "train"))
    paths = [Path(index.path(example)).stem for example in range(len(index))]
    number = len(index)
    data = replace(DATA, train_examples=number, val_examples=number, classes=1)
    plain = replace(data, mean=[0.0] * 3, std=[1.0] * 3)
    return root, plain, {name: example for example, name in enumerate(paths)}


@pytest.mark.dali
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_odd_images_are_read_alike(odd: tuple[Path, Data, dict[str, int]]) -> None:
    """Whole, and in windows of two epochs; exactly before the resizing: see test_dali.py."""
    root, data, ids = odd
    refused = {name for names in REFUSED.values() for name in names}
    names = sorted(ids.keys() - refused)
    examples = np.array([ids[name] for name in names])
    batch = f"val_batch={len(names)}"
    loaders = [opened(root, loader, data, batch) for loader in ("torchvision", "dali")]
    passes = [Pass(epoch, examples) for epoch in range(2)]
    for pairs in (
        zip(*(inputs.train(passes) for inputs in loaders), strict=True),
        zip(*(inputs.evaluation(evaluating(examples)) for inputs in loaders), strict=True),
    ):
        for (expected, _), (images, _) in pairs:
            for name, one, other in zip(names, expected, images, strict=True):
                within_bounds(255 * (one - other).abs(), decoding=name in ONE_LEVEL)


@pytest.mark.parametrize("loader", LOADERS)
def test_the_others_are_refused_by_name(
    odd: tuple[Path, Data, dict[str, int]], loader: str
) -> None:
    root, data, ids = odd
    made = recipe(root, loader, data, "inputs.decoders=0")
    for name in [name for names in REFUSED.values() for name in names]:
        # A loader ends with its first failure, as the run does.
        inputs = open_inputs(made, torch.device("cpu"))
        path = root / "train" / "n00" / file_name(name)
        with pytest.raises(InputFailed, match=re.escape(f"{path} cannot be read (")) as failure:
            list(inputs.train([Pass(0, np.array([ids[name]]))]))
        if name not in HEADER_ONLY:
            assert "no whole image that every loader reads alike" in str(failure.value)


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
    assert_same(mirrored(image), theirs.hflip(image))
    resized = theirs.resize(image, [round(side * 256 / 224)], mode)
    centre = theirs.center_crop(resized, [side, side])
    assert_same(centre_crop(image, side, bicubic=bicubic), centre)


def assert_same(ours: Image.Image, theirs: Image.Image) -> None:
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
