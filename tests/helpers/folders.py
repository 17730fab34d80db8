"""Image folders for tests: made up, taken from ImageNet, in shards; and loaders to read them."""

import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.composed import composed
from lsgd.inputs import Inputs, open_inputs
from lsgd.inputs.index import index_file, write_index
from lsgd.prepare.scan import index_folder
from lsgd.recipe import Data, Recipe
from lsgd.rules import augmentation

LOADERS = ["torchvision", pytest.param("dali", marks=pytest.mark.dali)]
SEED, SIDE = 5, 28
DATA = Data("made", 12, 6, 3, 3, SIDE, [0.5, 0.25, 0.4], [0.2, 0.3, 0.1], augmentation="crop_flip")
# File name: mode and size as stored. All that ImageNet has or is known to have had, and worse.
KINDS = {
    "gray.JPEG": ("L", (37, 61)),
    "cmyk.JPEG": ("CMYK", (50, 40)),
    "rgba.png": ("RGBA", (33, 97)),
    "odd.JPEG": ("RGB", (41, 29)),
}


def make_folder(root: Path) -> Path:
    """3 classes of 4 images to train and 2 to validate, indexed."""
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
    """Small images, each the only one of its class in both splits, so that a label is an id."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in range(count):
            (root / split / f"n{label:03}").mkdir(parents=True)
            pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / split / f"n{label:03}" / "one.JPEG")
    index_folder(root)
    return root


def link_sample(root: Path, test_data: Path) -> Path:
    """The 569 real images of ImageNet, one per class, to train and to validate."""
    root.mkdir()
    for split in ("train", "val"):
        (root / split).symlink_to(test_data / "imagenet-sample")
    index_folder(root, processes=2)
    return root


def in_shards(root: Path, folder: Path) -> Path:
    """The same images in two tars per split, in another order than in the folder."""
    folder.mkdir()
    for split in ("train", "val"):
        rows = np.load(index_file(folder=root, split=split))
        members = [os.fsdecode(path) for path in rows["path"]]
        written = {}
        for half in range(2):
            shard = folder / f"{split}-{half:06}.tar"
            with tarfile.open(shard, "w") as tar:
                for path in members[half::2][::-1]:
                    tar.add((root / path).resolve(), path.partition("/")[2])
            with tarfile.open(shard) as tar:
                for member in tar.getmembers():
                    written[f"{split}/{member.name}"] = shard.name, member.offset_data
        write_index(
            folder,
            split,
            [
                (row["path"], written[path][0].encode(), written[path][1], *row.tolist()[3:])
                for row, path in zip(rows, members, strict=True)
            ],
        )
    return folder


def recipe(root: Path, loader: str, data: Data = DATA, *words: str) -> Recipe:
    small = ["device=cpu", "workers=4", "worker_batch=64", "val_batch=64", "schedule.warmup=none"]
    made = composed("+recipe=bs256", f"inputs={loader}", f"seed={SEED}", *small, *words)
    return replace(made, data=replace(data, root=str(root)))


def opened(root: Path, loader: str, data: Data = DATA, *words: str) -> Inputs:
    """The loader of a recipe for this folder; torchvision decodes in this very process."""
    decoders = "inputs.decoders=0" if loader == "torchvision" else "inputs.decoders=2"
    return open_inputs(recipe(root, loader, data, decoders, *words), torch.device("cpu"))


def stored(root: Path, split: str, example: int) -> Image.Image:
    """The example as a plain sorted walk over the folder finds it, in RGB."""
    files = sorted((root / split).glob("*/*"), key=lambda path: (path.parent.name, path.name))
    with Image.open(files[example]) as image:
        return image.convert("RGB")


def normalised(image: Image.Image, data: Data = DATA) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    return (pixels - mean) / std


def drawn(
    root: Path,
    example: int,
    epoch: int,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
) -> Image.Image:
    """The example cut, resized and mirrored by PIL alone, as augmentation says."""
    ids, image = np.array([example]), stored(root, "train", example)
    ((left, top, width, height),) = augmentation.crop_windows(
        np.array([image.size]), ids, seed=SEED, epoch=epoch
    ).tolist()
    cropped = image.crop((left, top, left + width, top + height))
    resized = cropped.resize((SIDE, SIDE), resample)
    mirrored = augmentation.flips(ids, seed=SEED, epoch=epoch)[0]
    return resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else resized


def copy(root: Path, folder: Path) -> Path:
    """A copy that a test may damage, its index as old as its files."""
    return Path(shutil.copytree(root, folder))
