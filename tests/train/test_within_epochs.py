"""Evaluations within epochs: at the same steps in any run of a recipe, without any effect on it."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.folders import DATA, LOADERS, make_folder
from helpers.folders import recipe as folder_recipe
from helpers.reference_run import WORDS, newest_checkpoint, rows

from lsgd import train as training
from lsgd.errors import PreemptedError
from lsgd.learner import Learner
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.rows import MEASURED, depends_on_hardware, read_rows
from lsgd.run.saver import CheckpointSaver
from lsgd.train import train

# 2 epochs of 5 steps; the averaged weights that are evaluated need BN statistics of their own.
SHORT = [
    *WORDS, "epochs=2", "schedule.milestones=[]", "data.val_examples=100", "val_batch=20",
    "averaging=ema", "bn_statistics.examples=256",
]  # fmt: skip
PLACES = [2, 4, 7, 9]
"""The numbers of steps made at the evaluations within epochs, with evaluation.every=0.4."""


def run(folder: Path, *words: str) -> None:
    train(compose_recipe(*SHORT, *words, f"run_dir={folder}"))


def measured(folder: Path) -> list[dict[str, Any]]:
    """The rows of measurements, without those that are different each time they are made."""
    return [
        {key: value for key, value in row.items() if not depends_on_hardware(key)}
        for row in read_rows(folder / "metrics.jsonl")
        if row["kind"] in MEASURED
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed, which its tests leave as it is."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, "evaluation.every=0.4")
    return folder


@pytest.mark.slow
def test_they_change_no_result(whole: Path, tmp_path: Path) -> None:
    """Catches a loader, a mean of losses or BN statistics that an evaluation disturbs."""
    run(tmp_path / "run")
    others = [row for row in measured(whole) if row["kind"] != "evaluation"]
    assert others == measured(tmp_path / "run")
    ours, theirs = newest_checkpoint(whole), newest_checkpoint(tmp_path / "run")
    assert ours.fingerprint == theirs.fingerprint
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
    torch.testing.assert_close(ours.parts, theirs.parts, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_they_change_no_image(loader: str, tmp_path: Path) -> None:
    """Catches a loader of files that gives other images in the rest of an epoch."""
    root = make_folder(tmp_path / "root")
    words = [
        "epochs=2", "schedule.milestones=[]", "workers=2", "worker_batch=2", "val_batch=2",
        "model=small_resnet", "log_steps=1", "inputs.decoders=1",
    ]  # fmt: skip
    for name, every in (("within", "1 steps"), ("at the ends", "1")):
        often = f"evaluation.every={every}"
        train(folder_recipe(root, loader, DATA, *words, often, f"run_dir={tmp_path / name}"))
    within = measured(tmp_path / "within")
    assert [row["step"] for row in within if row["kind"] == "evaluation"] == [1, 2, 4, 5]
    others = [row for row in within if row["kind"] != "evaluation"]
    assert others == measured(tmp_path / "at the ends")


def test_rows_and_checkpoints_have_them(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rows(whole, "evaluation")
    assert [row["step"] for row in made] == PLACES
    assert [row["epoch"] for row in made] == [0.4, 0.8, 1.4, 1.8]
    saved = newest_checkpoint(whole)
    assert list(saved.evaluations) == PLACES
    for row in made:
        values = saved.evaluations[row["step"]]
        assert {"kind": "evaluation", "step": row["step"], "epoch": row["epoch"], **values} == row
        assert values.keys() == {"val_loss", "val_top1_error", "val_top5_error"}


@pytest.mark.slow
def test_the_speed_of_an_epoch_leaves_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a run advances in evaluations alone, but for 1 s at each reading."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    def evaluate(*arguments: Any) -> Any:
        now[0] += 1e6
        return evaluate_before(*arguments)

    evaluate_before = training.evaluate
    monkeypatch.setattr(training, "evaluate", evaluate)
    monkeypatch.setattr("lsgd.run.metrics.time.perf_counter", clock)
    run(tmp_path, "evaluation.every=0.4")
    speeds = [
        row["images_per_second"] for kind in ("train", "epoch") for row in rows(tmp_path, kind)
    ]
    assert min(speeds) > 1


class Killed(BaseException):
    """Ends a run where it is raised, as a kill does."""


@pytest.mark.slow
def test_a_run_that_is_ended_in_or_after_one_makes_each_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in an evaluation, killed between its row and its checkpoint, and told to leave in it.

    Catches an evaluation that a resumed run leaves out or makes twice, and a best checkpoint that
    it forgets.
    """
    evaluate, save = training.evaluate, CheckpointSaver.save
    words = ["evaluation.every=0.4", "keep_best=loss", "keep_checkpoints=1"]
    ends = ["kill", "between", "leave"]

    def disturbed_evaluate(learner: Learner, *rest: Any) -> Any:
        if (ends[:1], learner.next_step) == (["kill"], 2):
            raise Killed
        if (ends[:1], learner.next_step) == (["leave"], 7):
            os.kill(os.getpid(), signal.SIGUSR1)
        return evaluate(learner, *rest)

    def disturbed_save(self: CheckpointSaver, made: Checkpoint, **rest: Any) -> None:
        if ends[:1] == ["between"] and 4 in made.evaluations:
            raise Killed
        save(self, made, **rest)

    monkeypatch.setattr(training, "evaluate", disturbed_evaluate)
    monkeypatch.setattr(CheckpointSaver, "save", disturbed_save)
    for made in ([], [2, 4]):
        with pytest.raises(Killed):
            run(tmp_path, *words, "checkpoint_steps=1")
        assert [row["step"] for row in rows(tmp_path, "evaluation")] == made
        del ends[0]
    with pytest.raises(PreemptedError, match="saved after step 7"):
        run(tmp_path, *words)
    assert list(newest_checkpoint(tmp_path).evaluations) == [2, 4]
    del ends[0]
    run(tmp_path, *words)
    assert measured(tmp_path) == measured(whole)
    assert newest_checkpoint(tmp_path).evaluations == newest_checkpoint(whole).evaluations
    losses = {row["step"]: row["val_loss"] for row in measured(whole) if "val_loss" in row}
    assert os.readlink(tmp_path / checkpoint.BEST) == f"checkpoint-{min(losses, key=losses.get)}.pt"


def test_a_run_may_be_resumed_with_others(whole: Path, tmp_path: Path) -> None:
    """They are execution, so that an interval is not for good; its checkpoints keep what was."""
    shutil.copytree(whole, tmp_path / "run", symlinks=True)
    for path in checkpoint.checkpoint_files(tmp_path / "run")[:1]:
        path.unlink()
    run(tmp_path / "run", "evaluation.every=8 steps")
    assert [row["step"] for row in rows(tmp_path / "run", "evaluation")] == PLACES


@pytest.mark.slow
def test_a_run_that_goes_on_to_more_epochs_has_those_of_a_longer_one(
    whole: Path, tmp_path: Path
) -> None:
    """And the best checkpoint of all its epochs."""
    words = ["evaluation.every=0.4", "keep_best=loss", "keep_checkpoints=1"]
    run(tmp_path, *words, "epochs=1")
    run(tmp_path, *words)
    assert measured(tmp_path) == measured(whole)
    assert newest_checkpoint(tmp_path).evaluations == newest_checkpoint(whole).evaluations
    losses = {row["step"]: row["val_loss"] for row in measured(whole) if "val_loss" in row}
    assert os.readlink(tmp_path / checkpoint.BEST) == f"checkpoint-{min(losses, key=losses.get)}.pt"


@pytest.mark.slow
def test_a_checkpoint_without_them_is_as_before(tmp_path: Path) -> None:
    """Earlier versions refuse a checkpoint with fields that they do not have."""
    run(tmp_path, "epochs=1")
    fields = checkpoint.load_numbers(
        checkpoint.read(tmp_path / checkpoint.FILE)[: -checkpoint.DIGEST]
    )
    assert "evaluations" not in fields
