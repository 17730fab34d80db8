"""Images of any loader in the size of their epoch, in training and in evaluation.

The sizes are those of the recipe's image_sizes and evaluation.image_sizes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from lsgd.inputs import ExampleColumns, Inputs
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch


class SizedInputs:
    """A data loader whose images have the size of an epoch.

    Training images have that of their own epoch. With `epoch` they have the size of this epoch
    instead, as for the BN statistics of an evaluation, which are measured on images of the first
    epoch's crops. Evaluated images have the size and shape of this epoch, or without it of the last
    one.
    """

    def __init__(self, inputs: Inputs, recipe: Recipe, epoch: int | None = None) -> None:
        self.inputs, self.recipe, self.epoch = inputs, recipe, epoch
        self.name = inputs.name

    def columns(self) -> ExampleColumns:
        """Return the metadata columns of the loader's examples."""
        return self.inputs.columns()

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


def inputs_after(inputs: Inputs, epoch: int | None) -> Inputs:
    """Return the data loader of an evaluation after an epoch, or after the last one for None."""
    if not isinstance(inputs, SizedInputs):
        return inputs
    last = inputs.recipe.epochs - 1
    return SizedInputs(inputs.inputs, inputs.recipe, last if epoch is None else epoch)
