"""The augmentation of fb.resnet.torch, by every loader of image files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import CUBIC
from helpers.colours import coloured
from helpers.folders import (
    DATA,
    LOADERS,
    SIDE,
    augmented_image,
    normalised,
    open_folder_inputs,
    stored,
)
from helpers.micro_batches import evaluation_micro_batches
from numpy.typing import NDArray
from PIL import Image

from lsgd.inputs.pixels import recolour
from lsgd.rules import augmentation
from lsgd.rules.sampler import MicroBatch

FULL = replace(DATA, mean=[0.0] * 3, std=[1.0] * 3, augmentation="fb_resnet_torch")
IDS = np.array([7, 0, 11, 2, 9, 4, 5, 6, 3, 8, 1, 10])
EPOCH = 2
LEVEL = 1 / 255
ROUNDING = 1e-3
"""How far colours may be from those computed in float64, in levels of 8 bits: float32."""


def as_stored(examples: NDArray[np.int64], **_: int) -> NDArray[np.float64]:
    return np.tile(augmentation.IDENTITY_COLOURS, (len(examples), 1))


def colours_of(plain: torch.Tensor, each: MicroBatch) -> torch.Tensor:
    """What images (images, 3, height, width) become, one after the other."""
    made = [
        coloured(image.permute(1, 2, 0).double().numpy(), int(example), each.epoch or 0)
        for image, example in zip(plain, each.examples, strict=True)
    ]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("loader", LOADERS)
def test_colours_are_those_of_the_formulas(
    root: Path, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the very pixels that the loader has resized, those beyond 0 and 1 included."""
    passes = [MicroBatch(epoch, IDS[:8], range(2)) for epoch in range(3)] + [
        MicroBatch(0, IDS[8:], range(1))
    ]
    found = [images for images, _ in open_folder_inputs(root, loader, FULL).train(passes)]
    monkeypatch.setattr(augmentation, "colour_transforms", as_stored)
    plain = [images for images, _ in open_folder_inputs(root, loader, FULL).train(passes)]
    least, most = 0.0, 0.0
    for each, images, before in zip(passes, found, plain, strict=True):
        assert (images - colours_of(before, each)).abs().max() / LEVEL < ROUNDING
        least, most = min(least, images.min().item()), max(most, images.max().item())
    assert least < -0.1
    assert most > 1.1


@pytest.mark.parametrize("loader", LOADERS)
def test_windows_and_flips_stay_and_are_resized_bicubically(
    root: Path, loader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(augmentation, "colour_transforms", as_stored)
    ((images, labels),) = open_folder_inputs(root, loader, FULL).train(
        [MicroBatch(EPOCH, IDS, range(2))]
    )
    for image, example in zip(images, IDS.tolist(), strict=True):
        expected, other = (
            normalised(augmented_image(root, example, EPOCH, resample), FULL)
            for resample in (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR)
        )
        levels, others = ((image - each).abs() / LEVEL for each in (expected, other))
        # One is of CMYK, which the decoders have by a level apart.
        assert levels.max() < (ROUNDING if loader == "torchvision" else CUBIC + 1)
        assert levels.mean() < 0.5 * others.mean()
    assert labels.tolist() == (IDS // 4).tolist()


@pytest.mark.parametrize("loader", LOADERS)
def test_evaluation_is_bicubic_and_as_stored(root: Path, loader: str) -> None:
    """As in fb.resnet.torch, and in a loader that has trained with other colours before."""
    inputs = open_folder_inputs(root, loader, FULL)
    next(inputs.train([MicroBatch(EPOCH, IDS)]))
    ((images, _),) = inputs.evaluation(evaluation_micro_batches(np.array([0, 5])))
    for image, example in zip(images, (0, 5), strict=True):
        whole = stored(root, "val", example)
        width, height = (int(32 * side / min(whole.size)) for side in whole.size)
        resized = whole.resize((width, height), Image.Resampling.BICUBIC)
        left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
        centre = normalised(resized.crop((left, top, left + SIDE, top + SIDE)), FULL)
        levels = (image - centre).abs() / LEVEL
        assert levels.max() < (ROUNDING if loader == "torchvision" else CUBIC)
        assert levels.mean() < 3  # of noise, much of which is beyond 0 to 255


@pytest.mark.parametrize("loader", LOADERS)
def test_normalised_after_the_colours(root: Path, loader: str) -> None:
    """As in fb.resnet.torch, where the jitter is of pixels in [0, 1]."""
    ((pixels, _),) = open_folder_inputs(root, loader, FULL).train([MicroBatch(EPOCH, IDS)])
    full = replace(DATA, augmentation="fb_resnet_torch")
    ((images, _),) = open_folder_inputs(root, loader, full).train([MicroBatch(EPOCH, IDS)])
    mean, std = (torch.tensor(values)[:, None, None] for values in (DATA.mean, DATA.std))
    torch.testing.assert_close(images, (pixels - mean) / std, rtol=1e-5, atol=1e-5)


def test_each_image_has_the_mean_of_its_own_grey() -> None:
    """Where the next is of quite another brightness; contrast alone, of three plain colours."""
    pixels = torch.zeros(2, 2, 2, 3)
    pixels[0, 0] = torch.tensor([200.0, 0.0, 0.0])
    pixels[1] = torch.tensor([0.0, 0.0, 250.0])
    recolour(pixels, torch.tensor([[0.5, 0, 0.5, 0, 0, 0], [0.5, 0, 0.5, 0, 0, 0.1]]))
    red, blue = 0.5 * 0.299 * 100, 0.5 * 0.114 * 250
    torch.testing.assert_close(pixels[0, 0], torch.tensor([[100 + red, red, red]] * 2))
    torch.testing.assert_close(pixels[0, 1], torch.full((2, 3), red))
    torch.testing.assert_close(
        pixels[1], torch.tensor([blue, blue, 125 + blue + 25.5]).expand(2, 2, 3)
    )
