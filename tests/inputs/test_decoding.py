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

from lsgd.errors import InputFailed
from lsgd.inputs import open_inputs
from lsgd.inputs.index import Index, index_file
from lsgd.prepare.scan import index_folder
from lsgd.recipe import Data
from lsgd.rules.sampler import Pass


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
