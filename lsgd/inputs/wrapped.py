"""Images of any loader that are changed: augmented on the device, or in the size of their epoch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import tee
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.errors import UsageError
from lsgd.inputs import Augmentation, Batch, ExampleColumns, Inputs
from lsgd.job.device import arrays_to_device
from lsgd.own_parts import AUGMENTATION, imported_part, refusing_errors
from lsgd.recipe import Data, Recipe
from lsgd.rules.augmentation import erased_windows, parts_in_epoch
from lsgd.rules.sampler import MicroBatch


class WrappedInputs(Inputs):
    """A base class of data loaders that change something of another one, and no examples."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs, self.name = inputs, inputs.name

    def columns(self) -> ExampleColumns:
        """Return the metadata columns of the loader's examples."""
        return self.inputs.columns()

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Yield the examples of each training micro-batch as the loader has them."""
        return self.inputs.train(passes)

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Yield the examples of each evaluation micro-batch as the loader has them."""
        return self.inputs.evaluation(passes)


class AugmentedInputs(WrappedInputs):
    """A data loader whose training images an augmentation changes; others stay as they are."""

    def __init__(self, inputs: Inputs, augmentation: Augmentation) -> None:
        super().__init__(inputs)
        self.augmentation = augmentation

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Batch]:
        """Yield the augmented images and the labels of each training micro-batch."""
        passes, loaded = tee(passes)
        for images, labels in self.inputs.train(loaded):
            each = next(passes)
            if each.epoch is not None:
                images = self.augmentation.augment(images, each.examples, each.epoch)
            yield images, labels


class RandomErasing:
    """An augmentation that sets a random window of some images to 0, the mean of their pixels."""

    def __init__(self, data: Data, *, seed: int) -> None:
        self.data, self.seed = data, seed

    def augment(self, images: Tensor, examples: NDArray[np.int64], epoch: int) -> Tensor:
        """Return the images (images, channels, height, width) with their erased windows."""
        data = self.data
        if not parts_in_epoch(data.augmentation, epoch, data.augmented_epochs):
            return images
        side, draw = images.shape[-1], {"seed": self.seed, "epoch": epoch}
        windows = erased_windows(side, examples, probability=data.erase_probability, **draw)
        edges = arrays_to_device(windows, images.device).T[..., None]
        left, top, right, bottom = edges  # each (images, 1)
        at = torch.arange(side, device=images.device)
        rows, columns = (at >= top) & (at < bottom), (at >= left) & (at < right)
        erased = rows[:, :, None] & columns[:, None, :]
        return images.masked_fill(erased[:, None], 0)


def open_augmentation(recipe: Recipe, device: torch.device) -> Augmentation:
    """Make the augmentation of a recipe; raises UsageError unless it keeps images apart.

    It is tried on a few random images.
    """
    data = recipe.data
    part = imported_part(AUGMENTATION, data.augmentation, data.augmentation_source)
    made: Augmentation = part(data.augmentation_options, seed=recipe.seed, data=data)
    shape = (3, data.channels, data.image_size, data.image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(recipe.seed)).to(device)
    examples = np.arange(3)
    with refusing_errors(f"{part.override} fails on images of shape {shape}"):
        together = made.augment(images.clone(), examples, 0)
        alone = [made.augment(images[i : i + 1].clone(), examples[i : i + 1], 0) for i in examples]
        is_right = together.shape == images.shape and together.dtype == images.dtype
    if not is_right:
        raise UsageError(
            f"{part.override} returns {tuple(together.shape)} of {together.dtype} for images of "
            f"shape {shape} of {images.dtype}; return images of the same shape and type"
        )
    if not torch.allclose(together, torch.cat(alone), rtol=1e-4, atol=1e-5):
        raise UsageError(
            f"{part.override} changes an image by the other images of a micro-batch or by a random "
            "generator, so that the result would depend on the number of processes; draw by "
            "lsgd.parts.uniforms, for each example"
        )
    return made


class SizedInputs(WrappedInputs):
    """A data loader whose images have the size of an epoch.

    Training images have that of their own epoch. With `epoch` they have the size of this epoch
    instead, as for the BN statistics of an evaluation, which are measured on images of the first
    epoch's crops. Evaluated images have the size and shape of this epoch, or without it of the last
    one.
    """

    def __init__(self, inputs: Inputs, recipe: Recipe, epoch: int | None = None) -> None:
        super().__init__(inputs)
        self.recipe, self.epoch = recipe, epoch

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Yield the images and the labels of each training micro-batch, in the size of an epoch."""
        return self.inputs.train(map(self._sized, passes))

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Yield the images and labels of each evaluation micro-batch, in the size of the epoch."""
        return self.inputs.evaluation(map(self._evaluated, passes))

    def _evaluated(self, each: MicroBatch) -> MicroBatch:
        recipe = self.recipe
        images = recipe.evaluated_images(recipe.epochs - 1 if self.epoch is None else self.epoch)
        side = images.side if images.side != recipe.data.image_size else 0
        aspect = each.aspect if images.in_rectangles else 0.0
        return replace(each, side=side, crop_ratio=images.crop_ratio, aspect=aspect)

    def _sized(self, each: MicroBatch) -> MicroBatch:
        epoch = each.epoch if self.epoch is None else self.epoch
        return each if epoch is None else replace(each, side=self.recipe.training_size(epoch))


class OtherTrainingInputs(WrappedInputs):
    """A data loader whose training images are those of another one, opened at the first request.

    BN statistics are measured on them, in the size that a run trained on, where another size is
    evaluated.
    """

    def __init__(self, inputs: Inputs, open_training: Callable[[], Inputs]) -> None:
        super().__init__(inputs)
        self.open_training = open_training

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[Any]:
        """Yield the examples of each training micro-batch as the other loader has them."""
        return self.open_training().train(passes)


def inputs_after(inputs: Inputs, epoch: int | None) -> Inputs:
    """Return the data loader of an evaluation after an epoch, or after the last one for None."""
    if not isinstance(inputs, SizedInputs):
        return inputs
    last = inputs.recipe.epochs - 1
    return SizedInputs(inputs.inputs, inputs.recipe, last if epoch is None else epoch)
