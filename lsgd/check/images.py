"""Observations of the dataset, and of the processing of images before the network."""

from dataclasses import dataclass

import numpy as np

from lsgd.check.observation import Observation
from lsgd.inputs import IN_MEMORY_DATASETS
from lsgd.recipe import Data, Recipe
from lsgd.rules import augmentation

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""The mean and standard deviation of ImageNet's colours in fb.resnet.torch."""
EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
EIGENVECTORS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
)
FB_RESNET_COLOURS = "as in fb.resnet.torch"
"""The value of fb.resnet.torch's colours: jitter by 0.6 to 1.4, and lighting with std 0.1."""


def observe(recipe: Recipe) -> list[Observation]:
    """Return observations of a recipe's dataset and of its image processing."""
    if recipe.inputs.loader == "synthetic" or recipe.inputs.is_own:
        # Made-up images are neither cropped nor normalised, and what a loader of one's own does is
        # not observed.
        return [_data(recipe)]
    common = [_data(recipe), _normalisation(recipe.data)]
    if recipe.data.name in IN_MEMORY_DATASETS:
        return [*common, *_in_memory(recipe)]
    return [*common, *_of_files(recipe)]


def _data(recipe: Recipe) -> Observation:
    data, loader = recipe.data, recipe.inputs.loader
    made_up, own = loader == "synthetic", recipe.inputs.is_own
    source = "made-up images for " * made_up + f"images of {loader} for " * own
    sizes = (data.train_examples, data.val_examples, data.classes, data.channels, data.image_size)
    return Observation(
        "data",
        f"{source}{data.name}, {data.train_examples:,} and "
        f"{data.val_examples:,} images, {data.image_size} x {data.image_size}",
        ("made up" if made_up else loader if own else data.name, *sizes),
    )


def _normalisation(data: Data) -> Observation:
    """Observe whether ImageNet is normalised as in fb.resnet.torch, and other data by any mean."""
    same = data.name != "imagenet" or np.allclose([data.mean, data.std], [MEAN, STD], atol=1e-5)
    return Observation(
        "normalisation",
        "by the mean and standard deviation of each colour" if same else "otherwise",
        same,
    )


def _in_memory(recipe: Recipe) -> list[Observation]:
    data = recipe.data
    sides = [images.side for _, images in recipe.evaluated_changes]
    sizes = ", then ".join(f"{side} x {side}" for side in sides)
    kinds = {"none": "none", "shift_flip": "padded, shifted by up to 4 pixels, flipped"}
    return [
        Observation("augmentation", kinds.get(data.augmentation, data.augmentation), None),
        Observation("evaluation_crop", f"the whole image of {sizes}", None),
    ]


def _of_files(recipe: Recipe) -> list[Observation]:
    kind = recipe.data.augmentation
    parts = augmentation.parts_of(kind)
    windows = _windows(recipe) if "crop" in parts else None
    is_full = kind == "fb_resnet_torch"
    resize = "bicubic" if is_full else "bilinear"
    as_stored = Observation("colour", "as stored", "as stored")
    return [
        Observation("augmentation", str(windows or kind), windows),
        Observation("resize", f"antialiased {resize}", {resize}),
        _colour(recipe) if "colour" in parts else as_stored,
        _evaluation_crop(recipe),
    ]


def _evaluation_crop(recipe: Recipe) -> Observation:
    """Observe the centre crop of evaluated images: its ratio, or if it changes each of them.

    Each is the first epoch, the side and the short side of the resized image in pixels, and the
    number of images of a rectangle, 0 for squares.
    """
    crops = [
        (
            epoch,
            images.side,
            round(images.side / images.crop_ratio),
            recipe.evaluation.rectangle_batch * images.in_rectangles,
        )
        for epoch, images in recipe.evaluated_changes
    ]
    texts = [
        f"short side {short}, centre {side}"
        + f" or more, a rectangle for each {batch} images," * bool(batch)
        + f" from epoch {epoch} on" * bool(epoch)
        for epoch, side, short, batch in crops
    ]
    is_constant = len(crops) == 1 and not recipe.evaluation.rectangle_batch
    value = recipe.data.crop_ratio if is_constant else crops
    return Observation("evaluation_crop", "; ".join(texts), value)


def _colour(recipe: Recipe) -> Observation:
    """Observe the random jitter and lighting of training images' colours, over 10,000 draws."""
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


@dataclass(frozen=True)
class CropSamples:
    """Statistics of the random crops and flips of training images, over 10,000 draws."""

    area: tuple[float, float]
    """The range of the crops' share of the image area."""
    aspect: tuple[float, float]
    flipped: float
    """The share of flipped images."""
    epochs: int | None = None
    """The number of first epochs with random crops; None for all."""
    more: tuple[str, ...] = ()
    """The further parts of the augmentation and their strength, such as erasing 0.1, no colours."""

    def __str__(self) -> str:
        return (
            (
                f"area {100 * self.area[0]:.0f} to {100 * self.area[1]:.0f} %, aspect "
                f"{self.aspect[0]:.2f} to {self.aspect[1]:.2f}, flip {self.flipped:.1f}"
            )
            + "".join(f", {part}" for part in self.more)
            + (f", for {self.epochs} epochs" if self.epochs else "")
        )

    def has_ranges(
        self,
        area: tuple[float, float],
        aspect: tuple[float, float],
        epochs: int | None = None,
        more: tuple[str, ...] = (),
    ) -> bool:
        """Return whether areas and aspects span these ranges for `epochs`, and half of them flip.

        The further parts of the augmentation have to be `more`.
        Tolerances allow for a pixel and for the sampling error of ten thousand draws.
        """
        (least, most), (narrow, wide) = self.area, self.aspect
        return (
            area[0] - 0.002 < least < area[0] + 0.01
            and area[1] - 0.03 < most <= area[1] + 0.005
            and aspect[0] - 0.01 < narrow < aspect[0] + 0.02
            and aspect[1] - 0.025 < wide < aspect[1] + 0.017
            and abs(self.flipped - 0.5) < 0.05
            and self.epochs == epochs
            and self.more == more
        )


def _windows(recipe: Recipe) -> CropSamples:
    ids = np.arange(10_000)
    side = 10_000  # so large that whole pixels make no difference
    windows = augmentation.crop_windows(
        np.full((len(ids), 2), side),
        ids,
        seed=recipe.seed,
        epoch=0,
        area_range=recipe.data.crop_area,
        aspect_range=recipe.data.crop_aspect,
    )
    width, height = windows[:, 2] / side, windows[:, 3] / side
    area, aspect = width * height, width / height
    parts = augmentation.parts_of(recipe.data.augmentation)
    mirrored = (
        augmentation.flip_mask(ids, seed=recipe.seed, epoch=0).mean() if "flip" in parts else 0.0
    )
    return CropSamples(
        (area.min(), area.max()),
        (aspect.min(), aspect.max()),
        float(mirrored),
        recipe.data.augmented_epochs,
        tuple(
            _with_strength(part, recipe.data)
            for part in parts
            if part not in ("crop", "flip", "colour")
        ),
    )


def _with_strength(part: str, data: Data) -> str:
    """Return the name of an augmentation's part, with the values of its own settings."""
    if part == "rand_augment":
        return f"{part} of {data.rand_operations} operations of magnitude {data.rand_magnitude}"
    return f"{part} {data.erase_probability}" if part == "erasing" else part
