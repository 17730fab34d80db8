import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.waiting import read_line
from PIL import Image

from lsgd.bench import inputs
from lsgd.bench.__main__ import main
from lsgd.bench.loader_memory import resident_bytes
from lsgd.bench.loaders import consume, loader_setting, open_loaders, plan_batches
from lsgd.prepare.indexing import index_folder

HAS_DALI = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
SIDE = 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 classes of 12 images to train and 3 to validate, indexed."""
    root = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    for split, images in (("train", 12), ("val", 3)):
        for label in range(2):
            folder = root / split / f"n{label:02}"
            folder.mkdir(parents=True)
            for i in range(images):
                pixels = rng.integers(0, 256, (40 + i, 60 - i, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.JPEG")
    index_folder(root)
    return root


def words(root: Path, *more: str) -> list[str]:
    return [
        "+recipe=bs256",
        f"data.root={root}",
        "data.train_examples=24",
        "data.val_examples=6",
        "data.classes=2",
        f"data.image_size={SIDE}",
        "workers=2",
        "worker_batch=4",
        "model=small_resnet",
        "inputs.decoders=1",
        "device=cpu",
        *more,
    ]


@pytest.mark.slow
def test_the_whole_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Speeds, training and memory, and what it leaves behind."""
    out = tmp_path / "new" / "folder"
    options = ["--rounds", "6", "--images", "10", "--steps", "1", "--epochs", "2"]
    assert main(["inputs", *words(root), *options, "--out", str(out)]) == 0
    found = json.loads((out / "inputs.json").read_text())
    ours = [inputs.DALI] * HAS_DALI + [inputs.TORCHVISION]
    assert [*found["loaders"]] == [*ours, inputs.PLAIN] + [inputs.DALI_READER] * HAS_DALI
    for speeds in (*found["loaders"].values(), *found["training"]["speeds"].values()):
        assert len(speeds) == 6
        assert min(speeds) > 0
    assert found["images_per_round"] == 12  # whole batches
    assert all(0 <= share <= 1 for share in found["training"]["waiting"])
    assert [*found["memory_bytes"]] == ours
    assert all(len(sizes) == 2 for sizes in found["memory_bytes"].values())
    assert found["files"]["number"] == 24
    assert found["versions"]["torch"] == torch.__version__
    assert "--images 10" in found["command"]
    readme = (out / "README.md").read_text()
    assert readme.strip() in capsys.readouterr().out
    for text in (f"| {inputs.PLAIN} ", "bottleneck", "growth", "at least 1 times plain DataLoader"):
        assert text in readme
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "inputs.json"]


def test_the_copy_on_this_machine_is_read(root: Path, tmp_path: Path) -> None:
    recipe = compose_recipe(*words(root))
    staged = replace(recipe, data=replace(recipe.data, stage=str(tmp_path / "stage")))
    common = loader_setting(staged)
    assert common.root.is_relative_to(tmp_path / "stage")
    assert (common.index.root, common.recipe.data.root) == (common.root, str(common.root))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "size", "side"),
    [
        ("workers_per_pass=1", 4, SIDE),
        ("workers_per_pass=8", 8, SIDE),  # of 2 workers
        ("image_sizes.points=[[0,16],[1,16]]", 4, 16),
    ],
)
def test_every_loader_does_the_same_work(root: Path, override: str, size: int, side: int) -> None:
    """In each round so many images of the same shape and range, with nothing left over."""
    common = loader_setting(compose_recipe(*words(root), override))
    loaders = open_loaders(common, rounds=3, batches=2)
    assert len(loaders.alone) + len(loaders.missing) == 4
    means = []
    for name, loader in loaders.alone.items():
        for number in range(3):
            batches = [(images.clone(), labels.clone()) for images, labels in loader(number)]
            assert [tuple(images.shape) for images, _ in batches] == [(size, 3, side, side)] * 2, (
                name
            )
            assert [len(labels) for _, labels in batches] == [size, size]
            images = torch.cat([images for images, _ in batches])
            assert images.dtype == torch.float32
            means.append(images.mean().item())
    # Noise has the same mean in every crop.
    assert np.ptp(means) < 0.2
    assert consume(loaders.alone[inputs.PLAIN](0), common.device) == 2 * size


def test_the_plan_is_the_runs_own_order(root: Path) -> None:
    """Of its first epoch, then its second: nothing twice before all were there."""
    recipe = compose_recipe(*words(root))
    plan = plan_batches(recipe, 4, 3)
    assert [[each.epoch for each in passes] for passes in plan] == [[0] * 3] * 2 + [[1] * 3] * 2
    for epoch in (plan[:2], plan[2:]):
        ids = np.concatenate([each.examples for passes in epoch for each in passes])
        assert sorted(ids) == list(range(24))


def test_memory_of_children_counts() -> None:
    """A child that holds 50 MB more is seen, and gone when it has ended."""
    before = resident_bytes(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", "held = b'x' * 50_000_000; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    read_line(child)
    during = resident_bytes(os.getpid())
    child.communicate(b"\n", timeout=900)
    assert during - before > 45_000_000
    assert resident_bytes(child.pid) == 0


# --- What is refused -------------------------------------------------------------------------


def test_what_is_missing_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without DALI the others are measured, and it is said what would install it."""
    monkeypatch.setattr("lsgd.inputs.is_dali_installed", lambda: False)
    options = ["--rounds", "6", "--images", "4", "--steps", "0", "inputs.decoders=0"]
    assert main(["inputs", *words(root), *options]) == 0
    said = capsys.readouterr().out
    for name in (inputs.DALI, inputs.DALI_READER):
        assert f"- {name} is not measured: inputs=dali, but DALI is not installed" in said
    assert f"| {inputs.TORCHVISION} " in said


@pytest.mark.dali
def test_dalis_reader_is_left_out_for_names_that_are_not_utf_8(root: Path, tmp_path: Path) -> None:
    """The others take them."""
    shutil.copytree(root, tmp_path / "odd")
    first = bytes(tmp_path / "odd/train/n00/0.JPEG")
    os.rename(first, first.replace(b"0.J", b"\xff.J"))
    index_folder(tmp_path / "odd")
    made = compose_recipe(*words(tmp_path / "odd", "inputs.decoders=0"))
    found = open_loaders(loader_setting(made), rounds=1, batches=1)
    assert [*found.alone] == [inputs.DALI, inputs.TORCHVISION, inputs.PLAIN]
    why = found.missing[inputs.DALI_READER]
    assert why.startswith("it takes file names in UTF-8, and '")
    assert why.endswith("\\udcff.JPEG' is not; rename the file")


@pytest.mark.dali
def test_dalis_reader_leaves_out_what_is_skipped(root: Path) -> None:
    """And gives each of the other files its own label: 11 of one class, 12 of the other."""
    from lsgd.bench.dali_reader import dali_reader

    changed = {"examples=24": "examples=23", "worker_batch=4": "worker_batch=23"}
    counted = words(root, "data.skip=[train/n00/0.JPEG]")
    for old, new in (*changed.items(), ("workers=2", "workers=1")):
        counted = [word.replace(old, new) for word in counted]
    recipe = compose_recipe(*counted)
    common = loader_setting(recipe)
    ((images, labels),) = dali_reader(common, 1)(0)
    assert len(images) == 23
    assert labels.bincount().tolist() == [11, 12]
