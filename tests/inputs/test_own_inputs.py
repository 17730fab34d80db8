"""Loaders and augmentations of one's own: what is refused before a run, and what they change."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.inputs import open_inputs
from lsgd.rules.sampler import MicroBatch
from lsgd.workloads import open_training_inputs

CPU = torch.device("cpu")
LOADER = """
import numpy as np
import torch

class Loader:
    name = "own"

    def __init__(self, data, *, side=8, train=1442, fails=False, dtype="int64"):
        self.side, self.labels, self.fails = side, np.zeros(train, np.int64), fails
        self.dtype = getattr(torch, dtype)

    def columns(self):
        return {"train labels": self.labels}

    def train(self, passes):
        for each in passes:
            if self.fails: raise OSError("no disk")
            count = len(each.examples)
            yield torch.ones(count, 1, self.side, self.side), torch.zeros(count, dtype=self.dtype)

    def evaluation(self, passes):
        return Loader.train(self, passes)

class Broken(Loader):
    def __init__(self, data, *, kind): super().__init__(data); self.kind = kind

    def train(self, passes):
        for images, labels in super().train(passes):
            if self.kind == "fails": raise OSError("no disk")
            if self.kind == "fewer": images, labels = images[1:], labels[1:]
            yield images, labels.float() if self.kind == "floats" else labels
"""
AUGMENTATION = """
import torch
from lsgd.parts import uniforms

class Shifted:
    def __init__(self, *, seed, kind="example"): self.seed, self.kind = seed, kind

    def augment(self, images, examples, epoch):
        if self.kind == "mean": return images - images.mean()
        if self.kind == "drawn": return images + torch.rand(len(images), 1, 1, 1)
        if self.kind == "cut": return images[:, :, 1:]
        if self.kind == "fails": raise IndexError("too few")
        drawn = torch.from_numpy(uniforms(examples, seed=self.seed, epoch=epoch)[0])
        return images + drawn[:, None, None, None].to(images.dtype)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with the loader and the augmentation."""
    (tmp_path / "own_inputs.py").write_text(LOADER + AUGMENTATION)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    yield
    sys.modules.pop("own_inputs", None)


def opened(*overrides: str) -> Any:
    """The loader of the digits with these overrides."""
    return open_inputs(load_recipe(["recipe=digits", *overrides]), CPU)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("side=9", r"yields a batch of shapes \(2, 1, 9, 9\) and \(2,\) for 2 validation examples"),
        ("train=1000", r"has 1000 train labels, and this recipe has data\.train_examples=1442"),
        ("dtype=float32", r"yields labels of torch.float32, and a label is .*; yield integers"),
        ("fails=true", r"fails on the first 2 validation examples \(OSError: no disk\); fix it"),
    ],
)
def test_a_loader_of_other_data_is_refused(option: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"inputs=own_inputs:Loader {message}"):
        opened("inputs=own_inputs:Loader", f"inputs.options.{option}")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "fewer",
            r"yields a batch of shapes \(1, 1, 8, 8\) and \(1,\) for 2 training examples, and",
        ),
        ("floats", r"yields labels of torch.float32, and a label is"),
        ("fails", r"fails on the first 2 training examples \(OSError: no disk\); fix it"),
    ],
)
def test_training_images_are_tried_before_a_run(kind: str, message: str) -> None:
    """And not before an evaluation, which may have none."""
    words = ["recipe=digits", "inputs=own_inputs:Broken", f"inputs.options.kind={kind}"]
    recipe = load_recipe(words)
    open_inputs(recipe, CPU)
    with pytest.raises(UsageError, match=f"inputs=own_inputs:Broken {message}"):
        open_training_inputs(recipe, CPU)


def test_a_loader_has_no_further_evaluation_sets() -> None:
    """A run ended after its first epoch, and was told to index a folder."""
    with pytest.raises(UsageError, match=r"has v2, and inputs=own_inputs:Loader .*sets=\[val\]"):
        opened("inputs=own_inputs:Loader", "evaluation.sets=[val,v2]")


def test_classes_are_not_balanced_by_labels_of_other_data() -> None:
    """Those of data.name, which the images of the loader need not be."""
    words = ["recipe=digits", "inputs=own_inputs:Loader", "data.balance=weights"]
    with pytest.raises(UsageError, match=r"data\.balance=weights needs the labels of all training"):
        load_recipe(words)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("mean", "changes an image by the other images of a micro-batch or by a random generator"),
        ("drawn", "changes an image by the other images of a micro-batch or by a random generator"),
        ("cut", r"returns \(3, 1, 7, 8\) of torch.float32 for images of shape \(3, 1, 8, 8\)"),
        ("fails", r"fails on images of shape \(3, 1, 8, 8\) \(IndexError: too few\)"),
    ],
)
def test_an_augmentation_that_mixes_images_is_refused(kind: str, message: str) -> None:
    words = ["data.augmentation=own_inputs:Shifted", f"data.augmentation_options.kind={kind}"]
    with pytest.raises(UsageError, match=f"data.augmentation=own_inputs:Shifted {message}"):
        opened(*words)


def test_an_augmentation_changes_training_images_only() -> None:
    """Of any loader, each by its own number, in each order of the examples."""
    inputs = opened("data.augmentation=own_inputs:Shifted", "inputs=own_inputs:Loader")
    ids = np.array([5, 3, 8])
    passes = [MicroBatch(0, ids), MicroBatch(0, ids[::-1].copy()), MicroBatch(1, ids)]
    first, turned, later = (images for images, _ in inputs.train(iter(passes)))
    assert first.flip(0).equal(turned)
    assert (first != later).all()
    assert len({*first[:, 0, 0, 0].tolist()}) == 3
    [(images, _)] = inputs.evaluation([MicroBatch(None, ids, split="val")])
    assert images.eq(1).all()
