"""The template package of parts of one's own: built, installed, trained, resumed on 2 processes."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.launching import command
from helpers.reference_run import assert_equal

from lsgd.api import UsageError, load_recipe, train
from lsgd.run.read import read_run

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TEMPLATE = Path(__file__).resolve().parents[2] / "docs/how-to/parts"
RECIPE = """
# Squares on a grey image, by parts of the package example-parts.
defaults: [digits, {override /optim: own}, {override /schedule: own}]
name: squares
data: {name: squares, train_examples: 64, val_examples: 16, classes: 4, channels: 1, image_size: 8,
       mean: [0.5], std: [0.25], augmentation: mirror}
model: {name: tiny, options: {width: 4}}
optim: {name: lion}
inputs: {loader: npz, options: {erased: 3}}
schedule: {decay: stable, milestones: [], reference_lr: 0.01, reference_batch: 32, warmup: none}
metric: {name: macro, epochs_to: {macro_error: 10}}
workers: 4
worker_batch: 4
epochs: 4
precision: float64
log_steps: 1
checkpoint_steps: 2
"""


REGRESSION = """
# A number of each of 64 vectors, by a workload of the package example-parts.
defaults: [digits, {override /data: null}, {override /model: null}, {override /optim: sgd}]
name: regression
data: {name: vectors, train_examples: 64, val_examples: 17, classes: 1, workload: regression}
model: {name: own}
schedule: {milestones: [], reference_lr: 0.02, reference_batch: 16, warmup: none}
workers: 4
worker_batch: 4
epochs: 2
precision: float64
log_steps: 1
checkpoint_steps: 2
val_batch: 5
keep_best: rmse
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the template is installed, from its wheel, for this process."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=TEMPLATE, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    folder = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("lsgd.own_parts._imported", {})
    yield folder
    for name in [each for each in sys.modules if each.startswith("example_parts")]:
        del sys.modules[name]


def squares(folder: Path) -> None:
    """Write images of 4 classes, which differ in the place of a light bar."""
    for split, count in (("train", 64), ("val", 16)):
        labels = np.minimum(np.arange(count) % 8, 3)  # most are of the last class
        images = np.random.default_rng(0).random((count, 1, 8, 8)) / 2
        for image, label in zip(images, labels, strict=True):
            image[0, 2 * label : 2 * label + 2] += 0.5
        np.savez(folder / f"{split}.npz", images=images, labels=labels)


class StoppedError(Exception):
    """The end of a run after some of its steps, as a user's function may end it."""


def vectors(folder: Path) -> None:
    """Write vectors of 6 numbers, with a linear function of each."""
    draws = np.random.default_rng(0)
    for split, count in (("train", 64), ("val", 17)):
        features = draws.standard_normal((count, 6))
        np.savez(folder / f"{split}.npz", features=features, targets=features @ np.arange(6) / 4)


def test_the_template_trains_and_resumes_on_2_processes(installed: Path, tmp_path: Path) -> None:
    """The same run as on one without an interruption; of another source it is refused.

    The same holds for a run of the template's workload.
    """
    resumed = {}
    for name, recipe, write, last in (
        ("squares", RECIPE, squares, 7),
        ("vectors", REGRESSION, vectors, 3),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "own.yaml").write_text(recipe)
        write(folder)
        words = [f"recipe={folder / 'own.yaml'}", f"data.root={folder}", "device=cpu"]
        train(load_recipe(*words, f"run_dir={folder / 'whole'}"))
        resumed[folder] = [*words, f"run_dir={folder / 'resumed'}"]

        def stop(row: dict[str, object], last: int = last) -> None:
            if row["step"] == last:
                raise StoppedError

        with pytest.raises(StoppedError):
            train(load_recipe(*resumed[folder]), on_row=stop)
    # Another process imports what is installed now.
    layers = installed / "example_parts/layers.py"
    source = layers.read_text()
    layers.write_text(f"{source}# changed\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lsgd.own_parts._imported", {})
        for name in [each for each in sys.modules if each.startswith("example_parts")]:
            patch.delitem(sys.modules, name)
        with pytest.raises(
            UsageError, match=r"model=example_parts\.networks:TinyNet has changed since run_dir="
        ):
            train(load_recipe(*resumed[tmp_path / "squares"]))
    layers.write_text(source)
    # Python's -m looks for modules in the current folder.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for folder, words in resumed.items():
        job = command("forked", 2, "-m", "lsgd.train", *words)
        done = subprocess.run(
            job, cwd=installed, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert_equal(folder / "resumed", folder / "whole")
    # A report imports nothing of the package.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lsgd.own_parts._imported", {})
        found = [read_run(folder / "whole") for folder in resumed]
    assert [(run.metric.label, run.finished) for run in found] == [
        ("epochs to macro error 10.00 %", True),
        ("rmse", True),
    ]
