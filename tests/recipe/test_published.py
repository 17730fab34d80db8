"""What was written before stays valid: fingerprints, run folders, checkpoints and indexes.

tests/fixtures/ has what older versions have left.
"""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import open_once
from helpers.reference_run import assert_equal_rows

from lsgd import config
from lsgd.evaluate import evaluate_path
from lsgd.inputs import index
from lsgd.recipe import Optim, Recipe
from lsgd.recipe.fields import EXECUTION, added_later
from lsgd.report.run_archive import FILE, unpack
from lsgd.run import checkpoint
from lsgd.run.read import read_run
from lsgd.run.rows import read_rows
from lsgd.train import train

HERE = Path(__file__).parents[1]
OLD = HERE / "fixtures/0.1"
RESULTS = HERE.parent / "results"

# The words of the runs, as tests/fixtures/0.1/README.md has them; but images are decoded here.
DIGITS = [
    "+recipe=digits", "workers=8", "worker_batch=32", "workers_per_pass=4", "epochs=4",
    "precision=float64", "schedule.reference_lr=0.00625", "schedule.milestones=[3]",
    "schedule.warmup_epochs=1", "model.last_gamma=1.0", "log_steps=1", "checkpoint_steps=2",
    "keep_checkpoints=1",
]  # fmt: skip
IMAGES = [
    "+recipe=bs256", "data=tiny_imagenet", f"data.root={OLD / 'images'}", "data.train_examples=24",
    "data.val_examples=8", "data.classes=2", "data.image_size=16", "inputs=torchvision",
    "inputs.decoders=0", "model=small_resnet", "workers=2", "worker_batch=4", "workers_per_pass=2",
    "epochs=4", "schedule.milestones=[3]", "schedule.reference_batch=8", "schedule.warmup=none",
    "schedule.reference_lr=0.05", "log_steps=1", "checkpoint_steps=2", "keep_checkpoints=1",
    "precision=float64", "device=cpu",
]  # fmt: skip


@cache
def published() -> dict[str, str]:
    """The fingerprint of a few shipped recipes of each kind, from the golden files."""
    names = {
        "bs": ["bs8k", "bs256_full", "bs8k_equation10_corrected"], "digits": ["digits"],
        "fashion": ["fashion_bs64", "fashion_lenet5", "fashion_growth"], "ptb": ["ptb_small"],
        "mlperf": ["mlperf_bs3264"],
    }  # fmt: skip
    rows = {ladder: json.loads((HERE / f"golden/{ladder}.json").read_text()) for ladder in names}
    return {name: rows[ladder][name]["fingerprint"] for ladder in names for name in names[ladder]}


def fingerprint(*words: str) -> str:
    return config.load_recipe(words).fingerprint


def results(run: Path) -> list[dict[str, Any]]:
    """The rows of its steps and epochs."""
    path = run if run.suffix else run / "metrics.jsonl"
    return [row for row in read_rows(path) if row["kind"] in ("train", "epoch")]


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(OLD / name, folder / "run", symlinks=True))


# --- Fingerprints ----------------------------------------------------------------------------


GOLDEN = HERE / "golden/results.json"
ARCHIVES = sorted(RESULTS.glob(f"*/{FILE}"))


def configs(archive: Path) -> dict[str, Path]:
    """The config.yaml of each run of an archive, by its path in results/."""
    root = unpack(archive)
    found = sorted(root.rglob("config.yaml"))
    return {f"{archive.parent.name}/{path.relative_to(root)}": path for path in found}


@cache
def recipe_of(text: str) -> Recipe:
    return config.from_saved(config._parse_yaml(text, "config.yaml"))


def fingerprint_of(path: Path) -> str:
    """The fingerprint of a run's config.yaml; runs that differ in their seed alone are read once,
    since reading takes longer than all else here."""
    text = path.read_text("utf-8")
    own = re.compile(r"^(?:(?:seed|run_dir): |#).*\n", re.MULTILINE)
    (seed,) = re.findall(r"^seed: (\d+)$", text, re.MULTILINE)
    return replace(recipe_of(own.sub("", text)), seed=int(seed)).fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: str(archive.parent.name))
def test_the_runs_in_results_keep_their_fingerprints(archive: Path) -> None:
    """`LSGD_WRITE_GOLDEN=1 pytest -k fingerprints` adds those of new results."""
    found = {key: fingerprint_of(path) for key, path in configs(archive).items()}
    golden = json.loads(GOLDEN.read_text())
    if os.environ.get("LSGD_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(dict(sorted((golden | found).items())), indent=2) + "\n")
        pytest.skip(f"{GOLDEN} has those of {archive}")
    assert found == {
        key: of for key, of in golden.items() if key.startswith(f"{archive.parent.name}/")
    }


@pytest.mark.slow
def test_no_run_in_results_is_missing() -> None:
    known = {key for archive in ARCHIVES for key in configs(archive)}
    assert known == {*json.loads(GOLDEN.read_text())}


@dataclass(frozen=True)
class Crops:
    """A group of fields to come."""

    kind: str = "none"
    log: bool = field(default=False, metadata=EXECUTION)
    decay: float = field(default=0.99, metadata=added_later(0.99))
    """This came later still than the group."""


@dataclass(frozen=True)
class GrownOptim(Optim):
    """Optim with a field to come, whose default for new runs is not what was before it."""

    clip_value: float | None = field(default=5.0, metadata=added_later(None))


@dataclass(frozen=True)
class Grown(Recipe):
    """The recipe with a field, one in a group, and a group to come."""

    optim: GrownOptim
    label_smoothing: float = field(default=0.0, metadata=added_later(0.0))
    crops: Crops = field(default_factory=Crops, metadata=added_later({"kind": "none"}))


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """lsgd as it will be once it has these fields."""
    monkeypatch.setattr(config, "Recipe", Grown)
    config._published_recipe.cache_clear()  # recipes of the other kind
    yield
    config._published_recipe.cache_clear()


AS_BEFORE = "optim.clip_value=null"


@pytest.mark.usefixtures("grown")
def test_fields_that_come_later_keep_every_fingerprint() -> None:
    assert {name: fingerprint(f"+recipe={name}", AS_BEFORE) for name in published()} == published()
    assert fingerprint("+recipe=bs8k", AS_BEFORE).startswith("e22e6b7d")


@pytest.mark.usefixtures("grown")
def test_another_value_of_such_a_field_is_another_run() -> None:
    """But for one of execution."""
    words = ["label_smoothing=0.1", "optim.clip_value=1", "crops.decay=0.9"]
    words += [f"crops.kind={kind}" for kind in "ab"]
    prints = {fingerprint("+recipe=bs8k", AS_BEFORE, word) for word in words}
    assert len(prints | {published()["bs8k"]}) == len(words) + 1
    assert fingerprint("+recipe=bs8k", AS_BEFORE, "crops.log=true") == published()["bs8k"]


@pytest.mark.usefixtures("grown")
def test_what_lacks_a_field_is_read_as_before_it(tmp_path: Path) -> None:
    """Its default for new runs is another: an old run folder and an old checkpoint keep theirs."""
    assert config.load_recipe(["+recipe=bs8k"]).optim.clip_value == 5.0
    for path in OLD.rglob("config.yaml"):
        run = read_run(path.parent)
        assert run.recipe.optim.clip_value is None
        assert f"# fingerprint: {run.recipe.fingerprint}\n" in path.read_text()
    assert evaluate_path(OLD / "finished/checkpoint.pt")["val"].counts["images"] == 355
    folder = copied("killed", tmp_path)
    opened = open_once(config.load_recipe([*DIGITS, AS_BEFORE, f"run_dir={folder}"]))
    assert opened.checkpoint_path == str(folder / "checkpoint-12.pt")


def test_a_field_of_a_checkpoint_that_comes_later_has_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    averages = ("averages", dict[str, Any], field(default_factory=dict))
    grown = dataclasses.make_dataclass(
        "Checkpoint", [averages], bases=(checkpoint.Checkpoint,), frozen=True
    )
    monkeypatch.setattr(checkpoint, "Checkpoint", grown)
    assert (
        checkpoint.decode_checkpoint((OLD / "killed/checkpoint.pt").read_bytes(), "a").averages
        == {}
    )


# --- Run folders, checkpoints, indexes -------------------------------------------------------


def test_a_killed_run_resumes_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """Saved by 2 processes, resumed by one; the row of step 13 is made again."""
    run = copied("killed", tmp_path)
    train(config.load_recipe([*DIGITS, f"run_dir={run}"]))
    assert_equal_rows(results(run), results(OLD / "finished"))
    assert read_run(run).final_metric == pytest.approx(31.4085, abs=1e-4)
    again = evaluate_path(run / "checkpoint.pt")["val"]
    assert again.metrics["top1_error"] == pytest.approx(17.4648, abs=1e-4)


@pytest.mark.slow
def test_a_rehearsal_resumes(tmp_path: Path) -> None:
    """Of epochs 1, 3, 6, 10 and 11, the first two are evaluated and not again."""
    run = copied("rehearsed", tmp_path)
    saved = checkpoint.decode_checkpoint((run / "checkpoint.pt").read_bytes(), "rehearsed")
    assert list(saved.rates) == [1, 3]
    words = ["rehearse=true", "precision=float64", "checkpoint_steps=1", "keep_checkpoints=1"]
    train(config.load_recipe(["+recipe=digits", *words, f"run_dir={run}"]))
    assert_equal_rows(results(run), results(OLD / "rehearsed-finished.jsonl"))


def test_a_run_of_images_resumes_by_its_index(tmp_path: Path) -> None:
    run = copied("images-killed", tmp_path)
    train(config.load_recipe([*IMAGES, f"run_dir={run}"]))
    assert_equal_rows(results(run), results(OLD / "images-finished.jsonl"))


def test_a_finished_run_has_nothing_left_to_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied("finished", tmp_path)
    before = read_run(run)
    assert (before.finished, before.epoch, before.starts[0]["torch"]) == (True, 4, "2.13.0+cpu")
    error = train(config.load_recipe([*DIGITS, f"run_dir={run}"]))
    assert "it is complete; nothing is left to train" in capsys.readouterr().out
    assert error == before.final_metric
    assert_equal_rows(results(run), results(OLD / "finished"))


@pytest.mark.parametrize(
    ("name", "words", "step", "rows"),
    [
        ("finished", [], 20, "finished/metrics.jsonl"),
        ("killed", [], 12, ""),
        (
            "images-killed",
            [f"data.root={OLD / 'images'}", "inputs=torchvision", "inputs.decoders=0"],
            8,
            "",
        ),
    ],
)
def test_a_checkpoint_evaluates(name: str, words: list[str], step: int, rows: str) -> None:
    path = OLD / name / "checkpoint.pt"
    saved = checkpoint.decode_checkpoint(path.read_bytes(), name)
    assert saved.step == step
    assert list(saved.rates) == list(range(1, len(saved.rates) + 1))
    found = evaluate_path(path, words)["val"]
    assert found.counts["images"] == saved.recipe["data"]["val_examples"]
    if rows:
        last = read_rows(OLD / rows)[-1]
        assert found.metrics["loss"] == pytest.approx(last["val_loss"], rel=1e-10)
        assert found.metrics["top1_error"] == last["val_top1_error"]


def test_an_index_is_read() -> None:
    data, root = config.load_recipe(IMAGES).data, OLD / "images"
    old, ids = index.open_indexes(data, root)[0], np.arange(24)
    assert old.labels(ids).tolist() == [0] * 12 + [1] * 12
