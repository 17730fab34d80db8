"""Rectangular evaluation: the rectangles and pixels of fast.ai's code, however a run is split."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.bounds import assert_within_bounds
from helpers.folders import DATA, LOADERS, normalised, recipe, stored
from helpers.threaded import ThreadComm, run_on_threads
from PIL import Image

from lsgd.evaluation import TrainedModel, evaluate
from lsgd.inputs.wrapped import inputs_after
from lsgd.prepare.indexing import index_folder
from lsgd.recipe import Recipe
from lsgd.rules.rectangles import group_by_aspect
from lsgd.vision import transforms
from lsgd.workloads import open_workload

CPU = torch.device("cpu")
SHAPES = [
    (60, 40), (40, 60), (200, 40), (45, 45), (41, 40), (40, 91), (64, 48), (48, 64), (64, 48),
    (300, 40), (50, 40),
]  # fmt: skip
"""The width and height of the images, of which three groups of four have different rectangles.

The widest is wider than the rectangle of its group, and others of that group are narrower.
"""
GROUP = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An indexed folder of a training image and the validation images of SHAPES, of two classes."""
    root = tmp_path_factory.mktemp("shapes") / "root"
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for number, size in enumerate(SHAPES):
            folder = root / split / f"n{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
            small.resize(size, Image.Resampling.BICUBIC).save(folder / f"{number:02}.png")
    index_folder(root)
    return root


def rectangular(root: Path, loader: str, *words: str) -> Recipe:
    counts = {"train_examples": len(SHAPES), "val_examples": len(SHAPES), "classes": 2}
    plain = {"image_size": 32, "mean": [0.0] * 3, "std": [1.0] * 3}
    decoders = "inputs.decoders=0" if loader == "torchvision" else "inputs.decoders=2"
    return recipe(
        root, loader, replace(DATA, **counts, **plain), decoders, "data.image_size=32", "workers=1",
        "model=small_resnet", "precision=float64", f"evaluation.rectangle_batch={GROUP}", *words,
    )  # fmt: skip


def rectangles_of_fast_ai(sizes: list[tuple[int, int]], side: int) -> dict[int, tuple[int, int]]:
    """Return the (height, width) of each image: sort_ar, map_idx2ar and CropArTfm of its code.

    diux-dev/imagenet18 at a61ced3, training/dataloader.py.
    """
    idx_ar = [(i, round(s[0] / s[1], 5)) for i, s in enumerate(sizes)]
    sorted_idxar = sorted(idx_ar, key=lambda x: x[1])
    found = {}
    for begin in range(0, len(sorted_idxar), GROUP):
        idxs, ars = list(zip(*sorted_idxar[begin : begin + GROUP], strict=True))
        target_ar = round(np.mean(ars), 5)
        for idx in idxs:
            if target_ar < 1:
                w = int(side / target_ar)
                found[idx] = (w // 8 * 8, side)
            else:
                h = int(side * target_ar)
                found[idx] = (side, h // 8 * 8)
    return found


def center_crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Crop as torchvision 0.2 did, by which fast.ai's networks were evaluated."""
    (w, h), (th, tw) = image.size, size
    i, j = round((h - th) / 2.0), round((w - tw) / 2.0)
    return image.crop((j, i, j + tw, i + th))


@pytest.mark.parametrize("loader", LOADERS)
def test_rectangles_and_pixels_are_those_of_fast_ai(root: Path, loader: str) -> None:
    """Also in another size before, and in squares before that; black beside a narrow image."""
    words = ("evaluation.image_sizes=[[0,24,0.75],[2,32]]", "evaluation.rectangle_epoch=1")
    made = rectangular(root, loader, "epochs=4", "schedule.milestones=[]", *words, "val_batch=3")
    workload = open_workload(made, CPU)
    inputs, passes = workload.inputs(), workload.evaluation_micro_batches("val", 0, 1)
    files = {i: stored(root, "val", i) for i in range(len(SHAPES))}
    black = False
    for epoch, side, short in ((0, 24, 32), (1, 24, 32), (None, 32, 37)):
        sizes = rectangles_of_fast_ai([files[i].size for i in files], side)
        seen = []
        for each, (images, labels) in zip(
            passes, inputs_after(inputs, epoch).evaluation(passes), strict=True
        ):
            ids = each.examples.tolist()
            crops = [
                center_crop(
                    transforms.Resize(short)(files[i]), (side, side) if epoch == 0 else sizes[i]
                )
                for i in ids
            ]
            expected = torch.stack([normalised(crop, made.data) for crop in crops])
            levels = (images - expected).abs() * 255
            black |= bool((expected == 0).all(1).any())
            if loader == "torchvision":
                assert levels.max() < 1e-3
            else:
                assert_within_bounds(levels)
            assert labels.tolist() == [i >= 6 for i in ids]  # by class, then by name
            seen += ids
        assert sorted(seen) == [*files]
    assert black


def test_a_rectangle_is_that_of_the_image_however_a_run_is_split(root: Path) -> None:
    """All processes' micro-batches together are those of one; none has two rectangles."""
    groups = group_by_aspect(np.array(SHAPES), GROUP)
    of_image = {i: aspect for ids, aspect in groups for i in ids.tolist()}
    assert len({*of_image.values()}) == 3
    alone = group_by_aspect(np.array([(64, 48)] * 9 + [(48, 64)] * 4), 4)
    assert [(len(ids), aspect) for ids, aspect in alone] == [(4, 0.75), (9, 1.33333)]

    def metrics(comm: ThreadComm, val_batch: int) -> dict[str, float]:
        made = rectangular(root, "torchvision", f"val_batch={val_batch}")
        workload = open_workload(made, CPU)
        model = workload.network()
        workload.carried_states(model, range(1), comm)
        found = evaluate(TrainedModel(workload, model, comm, CPU), workload.inputs())["val"]
        assert found.counts["images"] == len(SHAPES)
        return found.metrics

    runs = [
        run_on_threads(processes, lambda comm, n=val_batch: metrics(comm, n))
        for processes, val_batch in ((1, 4), (2, 3), (3, 1))
    ]
    for of_processes in runs:
        for found in of_processes:
            assert found == pytest.approx(runs[0][0], rel=1e-10)
