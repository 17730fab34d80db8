"""Synthetic image folders and shards for tests, and the loaders that read them."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.composed import compose_recipe
from lsgd.inputs import Inputs, open_inputs
from lsgd.prepare.indexing import index_folder
from lsgd.prepare.shards import write_shards
from lsgd.recipe import Data, Recipe
from lsgd.rules import augmentation

LOADERS = ["torchvision", pytest.param("dali", marks=pytest.mark.dali)]
SEED, SIDE = 5, 28
DATA = Data("made", 12, 6, 3, 3, SIDE, [0.5, 0.25, 0.4], [0.2, 0.3, 0.1], augmentation="crop_flip")
# Mode and size by file name. They include every image mode known in ImageNet, and others.
KINDS = {
    "gray.JPEG": ("L", (37, 61)),
    "cmyk.JPEG": ("CMYK", (50, 40)),
    "rgba.png": ("RGBA", (33, 97)),
    "odd.JPEG": ("RGB", (41, 29)),
}


def make_folder(root: Path) -> Path:
    """Write an indexed folder of 3 classes with 4 training and 2 validation images each."""
    rng = np.random.default_rng(0)
    for split, names in (("train", list(KINDS)), ("val", ["gray.JPEG", "rgba.png"])):
        for label in range(3):
            folder = root / split / f"n{label:02}"
            folder.mkdir(parents=True)
            for name in names:
                mode, (width, height) = KINDS[name]
                pixels = rng.integers(0, 256, (height, width, len(mode)), dtype=np.uint8)
                Image.frombytes(mode, (width, height), pixels.tobytes()).save(folder / name)
    index_folder(root)
    return root


def make_numbered(root: Path, count: int, size: tuple[int, int] = (9, 11)) -> Path:
    """Write an indexed folder of small images with one image per class, so that labels are ids."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in range(count):
            (root / split / f"n{label:03}").mkdir(parents=True)
            pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / split / f"n{label:03}" / "one.JPEG")
    index_folder(root)
    return root


def write_folder_shards(root: Path, folder: Path) -> Path:
    """Write the images of a folder as tar shards, in another order; return the shards' folder."""
    write_shards(root, root, folder, megabytes=1, processes=1)
    return folder


def recipe(root: Path, loader: str, data: Data = DATA, *words: str) -> Recipe:
    small = ["device=cpu", "workers=4", "worker_batch=64", "val_batch=64", "schedule.warmup=none"]
    made = compose_recipe("+recipe=bs256", f"inputs={loader}", f"seed={SEED}", *small, *words)
    return replace(made, data=replace(data, root=str(root)))


def open_folder_inputs(root: Path, loader: str, data: Data = DATA, *words: str) -> Inputs:
    """Open the inputs of a recipe for this folder; torchvision decodes in this process."""
    decoders = "inputs.decoders=0" if loader == "torchvision" else "inputs.decoders=2"
    return open_inputs(recipe(root, loader, data, decoders, *words), torch.device("cpu"))


def stored(root: Path, split: str, example: int) -> Image.Image:
    """Return the RGB image of an example id, by a plain sorted walk over the folder."""
    files = sorted((root / split).glob("*/*"), key=lambda path: (path.parent.name, path.name))
    with Image.open(files[example]) as image:
        return image.convert("RGB")


def normalised(image: Image.Image, data: Data = DATA) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    return (pixels - mean) / std


def augmented_image(
    root: Path,
    example: int,
    epoch: int,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
    **ranges: Sequence[float],
) -> Image.Image:
    """Return an example's augmented image for an epoch, cropped, resized and flipped by PIL.

    `ranges` are those of augmentation.crop_windows.
    """
    ids, image = np.array([example]), stored(root, "train", example)
    ((left, top, width, height),) = augmentation.crop_windows(
        np.array([image.size]), ids, seed=SEED, epoch=epoch, **ranges
    ).tolist()
    cropped = image.crop((left, top, left + width, top + height))
    resized = cropped.resize((SIDE, SIDE), resample)
    mirrored = augmentation.flip_mask(ids, seed=SEED, epoch=epoch)[0]
    return resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else resized


def copy(root: Path, folder: Path) -> Path:
    """Copy an image folder for a test that damages it; file times and the index stay the same."""
    return Path(shutil.copytree(root, folder))
