"""A workload without images: the regression of a number from the numbers in two .npz files."""

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.parts import Data, MicroBatch, OwnWorkload, Recipe, UsageError


class Regression(OwnWorkload):
    """Predict one number of each example by two layers with BN, and judge its root mean square."""

    metric_names = ("rmse",)
    count_names = ("examples",)

    def __init__(self, recipe: Recipe, device: torch.device, *, width: int = 16) -> None:
        super().__init__(recipe, device)
        self.width = width

    def make_network(self) -> nn.Module:
        """Build the network, whose first layer takes any number of features."""
        hidden = nn.Linear(self.examples.features, self.width, bias=False)
        return nn.Sequential(
            hidden, nn.BatchNorm1d(self.width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(self.width, 1)
        )

    def open_inputs(self) -> "NpzVectors":
        """Return the loader of data.root/train.npz and val.npz."""
        return self.examples

    @cached_property
    def examples(self) -> "NpzVectors":
        """The examples, read at their first use."""
        return NpzVectors(self.recipe.data)

    def loss(
        self, model: nn.Module, batch: tuple[Tensor, Tensor], each: MicroBatch
    ) -> tuple[Tensor, Tensor]:
        """Return the summed squares of the differences, and the number of examples."""
        features, targets = (values.to(self.device, self.dtype) for values in batch)
        loss = (model(features).squeeze(1).to(self.dtype) - targets).square().sum()
        return loss, torch.full((1,), len(targets), device=self.device)

    def metrics(self, loss: float, counts: list[int]) -> dict[str, float]:
        """Return the root of the mean square."""
        return {"rmse": math.sqrt(loss)}


class NpzVectors:
    """Read the features (examples, numbers) and targets (examples,) of two files into memory."""

    name = "npz files"

    def __init__(self, data: Data) -> None:
        self.sets: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for split, count in (("train", data.train_examples), ("val", data.val_examples)):
            file = Path(data.root or ".") / f"{split}.npz"
            if not file.is_file():
                raise UsageError(f"data.root={data.root} has no {file.name}; write its folder")
            with np.load(file) as arrays:
                self.sets[split] = arrays["features"], arrays["targets"]
            if (found := len(self.sets[split][1])) != count:
                raise UsageError(
                    f"{file} has {found} examples; write data.{split}_examples={found}"
                )
        self.features = self.sets["train"][0].shape[1]

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return what identifies the examples, so that all processes have the same."""
        return {f"{split} targets": targets for split, (_, targets) in self.sets.items()}

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features and the targets of each micro-batch."""
        return self._read("train", passes)

    def evaluation(self, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features and the targets of each micro-batch of validation examples."""
        return self._read("val", passes)

    def _read(self, split: str, passes: Iterable[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        for each in passes:
            features, targets = (
                torch.from_numpy(values[each.examples]) for values in self.sets[split]
            )
            yield features, targets
