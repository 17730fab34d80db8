"""Observations of the dataset, and of the processing of images before the network."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from lsgd.check.observation import Observation
from lsgd.inputs import IN_MEMORY_DATASETS
from lsgd.inputs.index import ImageIndex, write_index
from lsgd.inputs.pixels import Normalise
from lsgd.inputs.torchvision import FolderInputs
from lsgd.recipe import Data, Recipe
from lsgd.rules import augmentation
from lsgd.rules.sampler import MicroBatch

CPU = torch.device("cpu")
SIZES = ((340, 260), (260, 390))
"""The widths and heights of the images that the loader reads."""
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
GREY = [0.299, 0.587, 0.114]
EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
EIGENVECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
FB_RESNET_COLOURS = "as in fb.resnet.torch"
"""The value of fb.resnet.torch's colours: jitter by 0.6 to 1.4, and lighting with std 0.1."""


def observe(recipe: Recipe) -> list[Observation]:
    """Return observations of a recipe's dataset and of its image processing."""
    if recipe.inputs.loader == "synthetic":
        return [_data(recipe)]  # made-up images are neither cropped nor normalised
    common = [_data(recipe), _normalisation(recipe.data)]
    if recipe.data.name in IN_MEMORY_DATASETS:
        return [*common, *_in_memory(recipe.data)]
    return [*common, *_of_files(recipe)]


def _data(recipe: Recipe) -> Observation:
    data, made_up = recipe.data, recipe.inputs.loader == "synthetic"
    sizes = (data.train_examples, data.val_examples, data.classes, data.channels, data.image_size)
    return Observation(
        "data",
        f"{'made-up images for ' * made_up}{data.name}, {data.train_examples:,} and "
        f"{data.val_examples:,} images, {data.image_size} x {data.image_size}",
        ("made up" if made_up else data.name, *sizes),
    )


def _normalisation(data: Data) -> Observation:
    """Observe whether pixels are normalised by the mean and standard deviation of each channel.

    ImageNet's are compared with those of fb.resnet.torch, those of other datasets with the recipe.
    """
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    output = Normalise(data, CPU)(pixels.repeat(1, data.channels, 1, 1))
    mean, std = (MEAN, STD) if data.name == "imagenet" else (data.mean, data.std)
    expected = (pixels / 255 - _per_colour(mean)) / _per_colour(std)
    same = torch.allclose(output, expected, atol=1e-5)
    return Observation(
        "normalisation",
        "by the mean and standard deviation of each colour" if same else "otherwise",
        same,
    )


def _per_colour(values: list[float]) -> Tensor:
    return torch.tensor(values)[:, None, None]


def _in_memory(data: Data) -> list[Observation]:
    kinds = {"none": "none", "shift_flip": "padded, shifted by up to 4 pixels, flipped"}
    return [
        Observation("augmentation", kinds.get(data.augmentation, data.augmentation), None),
        Observation(
            "evaluation_crop", f"the whole image of {data.image_size} x {data.image_size}", False
        ),
    ]


def _of_files(recipe: Recipe) -> list[Observation]:
    """Observe how the loader processes image files, by comparison with PIL on the same files."""
    side, normalise = recipe.data.image_size, Normalise(recipe.data, CPU)
    ids = np.arange(len(SIZES))
    with _loader(recipe) as (inputs, stored):
        train = {epoch: next(inputs.train([MicroBatch(epoch, ids)]))[0] for epoch in range(3)}
        val = next(inputs.evaluation([MicroBatch(None, ids, range(0), split="val")]))[0]

    def matches(batch: Tensor, images: NDArray[np.generic]) -> bool:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        return torch.allclose(batch, normalise(pixels), atol=1e-4)

    def trains(resample: Image.Resampling, *, coloured: bool) -> bool:
        for epoch, batch in train.items():
            images = _drawn(stored, side, resample, seed=recipe.seed, epoch=epoch)
            with_colours = _coloured(images, seed=recipe.seed, epoch=epoch)
            if not matches(batch, with_colours if coloured else images):
                return False
        return True

    def evaluates(resample: Image.Resampling) -> bool:
        return matches(val, np.stack([_centre(image, side, resample) for image in stored]))

    as_stored, coloured = (
        next((name for name, kind in FILTERS.items() if trains(kind, coloured=colours)), None)
        for colours in (False, True)
    )
    trained = as_stored or coloured
    evaluated = next((name for name, kind in FILTERS.items() if evaluates(kind)), None)
    windows = _windows(recipe)
    uses = {name or "unknown" for name in (trained, evaluated)}
    return [
        Observation(
            "augmentation",
            str(windows) if trained else f"unknown (data.augmentation={recipe.data.augmentation})",
            windows if trained else None,
        ),
        Observation("resize", _antialiased(uses), uses),
        _colour(recipe) if coloured else _other_colour("as stored" if as_stored else "unknown"),
        Observation(
            "evaluation_crop",
            f"short side {round(side * augmentation.RESIZE)}, centre {side}"
            if evaluated
            else "not the centre 224 of 256 pixels",
            evaluated is not None,
        ),
    ]


def _antialiased(filters: set[str]) -> str:
    return " and ".join(f"antialiased {name}" for name in sorted(filters))


def _colour(recipe: Recipe) -> Observation:
    """Observe the random jitter and lighting of training images' colours, over 10,000 draws.

    The caller has compared the loader's pixels with these draws.
    """
    draw = {"seed": recipe.seed, "epoch": 0}
    factors = augmentation.jitter_factors(np.arange(10_000), **draw)
    least, most = factors.min(axis=0), factors.max(axis=0)
    # In the basis of the colours' eigenvectors, in units of their eigenvalues.
    along = augmentation.lighting_offsets(np.arange(10_000), **draw) @ EIGENVECTORS / EIGENVALUES
    spread = np.cov(along.T)
    independent = np.abs(np.corrcoef(np.concatenate((factors.T, along.T))) - np.eye(6)).max() < 0.05
    run = (
        f"jitter by {least.min():.2f} to {most.max():.2f}, lighting of standard deviation "
        + " ".join(f"{each:.3f}" for each in np.sqrt(np.diag(spread)))
    )
    same = (
        np.allclose(least, 0.6, atol=0.001)
        and np.allclose(most, 1.4, atol=0.001)
        and np.allclose(factors.mean(axis=0), 1, atol=0.02)
        and np.allclose(np.sqrt(np.diag(spread)), 0.1, rtol=0.05)
        and bool(independent)
    )
    return Observation("colour", run, FB_RESNET_COLOURS if same else "otherwise")


def _other_colour(run: str) -> Observation:
    return Observation("colour", run, run)


@dataclass(frozen=True)
class CropSamples:
    """Statistics of the random crops and flips of training images, over 10,000 draws."""

    area: tuple[float, float]
    """The range of the crops' share of the image area."""
    aspect: tuple[float, float]
    flipped: float
    """The share of flipped images."""

    def __str__(self) -> str:
        return (
            f"area {100 * self.area[0]:.0f} to {100 * self.area[1]:.0f} %, aspect "
            f"{self.aspect[0]:.2f} to {self.aspect[1]:.2f}, flip {self.flipped:.1f}"
        )

    def has_min_area(self, share: float) -> bool:
        """Return whether areas span `share` to 1, aspects 3/4 to 4/3, and half of the crops flip.

        Tolerances allow for a pixel and for the sampling error of ten thousand draws.
        """
        (least, most), (narrow, wide) = self.area, self.aspect
        return (
            share - 0.002 < least < share + 0.01
            and 0.97 < most <= 1.005
            and 0.74 < narrow < 0.77
            and 1.31 < wide < 1.35
            and abs(self.flipped - 0.5) < 0.05
        )


def _windows(recipe: Recipe) -> CropSamples:
    ids = np.arange(10_000)
    side = 10_000  # so large that whole pixels make no difference
    windows = augmentation.crop_windows(
        np.full((len(ids), 2), side), ids, seed=recipe.seed, epoch=0
    )
    width, height = windows[:, 2] / side, windows[:, 3] / side
    area, aspect = width * height, width / height
    mirrored = augmentation.flip_mask(ids, seed=recipe.seed, epoch=0).mean()
    return CropSamples((area.min(), area.max()), (aspect.min(), aspect.max()), float(mirrored))


@contextmanager
def _loader(recipe: Recipe) -> Iterator[tuple[FolderInputs, list[Image.Image]]]:
    """Open torchvision's loader on a few temporary image files; yield it and the images."""
    generator = np.random.default_rng(0)
    stored = [
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for width, height in SIZES
    ]
    with TemporaryDirectory() as folder:
        root, rows = Path(folder), []
        for label, image in enumerate(stored):
            file = root / f"{label}.png"
            image.save(file)
            rows.append((file.name.encode(), b"", 0, file.stat().st_size, label, *image.size))
        index = ImageIndex(root, write_index(root, "train", rows))
        data = replace(recipe.data, skip=[])
        inputs = FolderInputs(
            data, (index, index), recipe.inputs, seed=recipe.seed, device=CPU, decoders=0
        )
        yield inputs, stored


def _drawn(
    stored: list[Image.Image], side: int, resample: Image.Resampling, *, seed: int, epoch: int
) -> NDArray[np.uint8]:
    ids = np.arange(len(stored))
    windows = augmentation.crop_windows(np.array(SIZES), ids, seed=seed, epoch=epoch)
    mirrored = augmentation.flip_mask(ids, seed=seed, epoch=epoch)
    images = []
    for image, (left, top, width, height), flip in zip(stored, windows, mirrored, strict=True):
        window = image.crop((left, top, left + width, top + height))
        resized = window.resize((side, side), resample)
        images.append(resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else resized)
    return np.stack([np.array(image) for image in images])


def _coloured(images: NDArray[np.uint8], *, seed: int, epoch: int) -> NDArray[np.float64]:
    """Apply the random colour jitter and lighting of fb.resnet.torch to a batch of images."""
    draw, coloured = {"seed": seed, "epoch": epoch}, []
    ids = np.arange(len(images))
    factors, light = (
        augmentation.jitter_factors(ids, **draw),
        augmentation.lighting_offsets(ids, **draw),
    )
    for pixels, (brightness, contrast, saturation), added in zip(
        images / 255, factors, light, strict=True
    ):
        image = brightness * pixels
        image = contrast * image + (1 - contrast) * (image @ GREY).mean()
        image = saturation * image + (1 - saturation) * (image @ GREY)[:, :, None]
        coloured.append(255 * (image + added))
    return np.stack(coloured)


def _centre(image: Image.Image, side: int, resample: Image.Resampling) -> NDArray[np.uint8]:
    """Resize an image as for evaluation, to a short side of 256 for 224, and crop its centre."""
    short = side * 256 / 224
    width, height = (math.floor(length * short / min(image.size)) for length in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    resized = image.resize((width, height), resample)
    return np.array(resized.crop((left, top, left + side, top + side)))
