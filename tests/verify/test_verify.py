"""Verification of runs: an honest one is confirmed, and each planted forgery is found."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.launching import launch

from lsgd import config
from lsgd.recipe import Recipe
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.rows import read_rows
from lsgd.run.verification import RunVerification, read_verification
from lsgd.train import train
from lsgd.verify.__main__ import main
from lsgd.verify.evidence import Evidence
from lsgd.verify.reexecution import draw_places
from lsgd.workloads import open_workload
from lsgd.workloads.images import ImageClassification

# 2 epochs of 20 steps, with evaluations after steps 15 and 35 too; the checkpoints of steps 20 (a
# milestone), 25, 30, 35 and 40 are kept.
WORDS = (
    "+recipe=digits", "epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "workers=3", "worker_batch=24", "schedule.reference_batch=24", "precision=float64",
    "log_steps=1", "checkpoint_steps=5", "keep_checkpoints=4", "workers_per_pass=3",
    "data.augmentation=shift_flip", "schedule.reference_lr=0.02", "evaluation.every=0.75",
)  # fmt: skip
SAYING = ("loss", "gradient_norm")
"""The keys of a train row, besides the error, that are computed again."""
OPTIONS = ("--steps", "5", "--places", "9", "--seed", "3")


def made_run(folder: Path, *words: str) -> Path:
    train(compose_recipe(*WORDS, *words, f"run_dir={folder}"))
    return folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("honest") / "run")


@pytest.fixture
def copied(honest: Path, tmp_path: Path) -> Path:
    return shutil.copytree(honest, tmp_path / "run", symlinks=True)


def verified(folder: Path, *words: str) -> tuple[int, RunVerification]:
    out = folder.with_name("out.json")
    code = main([str(folder), *OPTIONS, "--out", str(out), *words])
    return code, read_verification(out)


def edit_rows(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    rows = read_rows(folder / "metrics.jsonl")
    for row in rows:
        edit(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_row(folder: Path, kind: str, step: int, **values: Any) -> None:
    edit_rows(folder, lambda row: (row["kind"], row["step"]) == (kind, step) and row.update(values))


def edit_checkpoints(folder: Path, edit: Callable[[Checkpoint], Checkpoint], *steps: int) -> None:
    """Replace the checkpoints of these steps by edited ones that have the right check sums."""
    for path in checkpoint.checkpoint_files(folder):
        saved = checkpoint.decode_checkpoint(checkpoint.read(path), str(path))
        if not steps or saved.step in steps:
            is_milestone = path.name.startswith("milestone")
            checkpoint.write(edit(saved), folder, milestone=is_milestone, keep=9)


def relabel(folder: Path, honest: Path) -> None:
    """Let the run of another recipe claim to be of the honest one, as a careful forger would."""
    shutil.copy(honest / "config.yaml", folder / "config.yaml")
    recipe = config.read_recipe(folder / "config.yaml")
    edit_checkpoints(folder, lambda saved: _relabelled(saved, recipe))


def _relabelled(saved: Checkpoint, recipe: Recipe) -> Checkpoint:
    order = open_workload(recipe, torch.device("cpu")).example_order(saved.epoch)
    hashed = checkpoint.order_hash(order)
    return replace(saved, fingerprint=recipe.fingerprint, order=hashed)


@pytest.mark.slow  # its fixture trains the run, and imports what training needs
def test_an_honest_run_is_confirmed_and_its_folder_stays_as_it_is(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    code, found = verified(copied)
    assert (code, found.mismatches, found.unresolved) == (0, [], {})
    assert {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()} == before
    assert (found.places, found.executed_steps, found.made_steps) == (
        [0, 20, 25, 30, 35, 40],
        25,
        40,
    )
    # 42 rows have an lr, and so has each of 5 checkpoints; 25 steps were executed again.
    assert (found.compared["lr"], found.compared["loss"]) == (47, 25)
    # Each of the checkpoints 25, 30, 35 and 40 was computed again from the one before.
    assert found.compared["model"] == 4 * len(list(torch.load(
        copied / "checkpoint-40.pt", weights_only=True)["model"]
    ))  # fmt: skip
    # The evaluations of the checkpoints of steps 20, 35 and 40, and those after steps 35 and 40.
    assert found.compared["val_top1_error"] == 5
    output = capsys.readouterr().out
    assert output.index("allowed: ") < output.index("Confirmed: 25 of 40 steps (62.5 %)")


def test_rounding_is_measured_where_no_fixed_tolerance_holds(tmp_path: Path) -> None:
    """Other micro-batches change the last bits; float32 at a high lr makes more of them."""
    folder = made_run(tmp_path / "run", "precision=float32", "schedule.reference_lr=0.2")
    out = tmp_path / "out.json"
    options = [*OPTIONS, "--places", "2", "--out", str(out)]
    assert main([str(folder), "workers_per_pass=1", *options]) == 0
    assert 0 < read_verification(out).largest_difference < 0.2


@pytest.mark.distributed
def test_three_processes_confirm_the_run_of_one(copied: Path) -> None:
    """And draw the same places: there are more checkpoints than places, and no seed is given."""
    options = ["--steps", "5", "--places", "3"]
    ran = launch("forked", 3, "-m", "lsgd.verify", str(copied), *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = read_verification(copied.with_name("run.verification.json"))
    assert found.machine.startswith("3 processes")
    assert found.compared["loss"] == 10  # none after the last checkpoint


@pytest.mark.slow
def test_rows_that_say_nothing_confirm_nothing(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in checkpoint.checkpoint_files(copied):
        path.unlink()
    (copied / checkpoint.FILE).unlink(missing_ok=True)
    edit_rows(copied, lambda row: [row.pop(key, None) for key in (*SAYING, "top1_error")])
    assert main([str(copied), *OPTIONS]) == 2
    assert "no value of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit", [lambda rows: rows[1:2] + rows, lambda rows: [rows[0], rows[-1] | {"step": 0}]]
)
def test_rows_out_of_order_are_a_verdict(copied: Path, edit: Any) -> None:
    rows = read_rows(copied / "metrics.jsonl")
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in edit(rows)))
    code, found = verified(copied)
    assert (code, found.executed_steps) == (1, 0)
    assert "it is not in the order of the run's steps" in found.mismatches[0]


def edited_rows(folder: Path) -> None:
    """Edit a loss, a gradient norm in its 7th digit, and an lr where no step is executed again.

    Then an error that the checkpoints do not have, and a final error that the last one has too.
    """
    edit_row(folder, "train", 32, loss=0.5)
    norm = next(row["gradient_norm"] for row in read_rows(folder / "metrics.jsonl")[1:])
    edit_row(folder, "train", 1, gradient_norm=norm * (1 + 1e-7))
    edit_row(folder, "train", 17, lr=0.1)
    edit_row(folder, "epoch", 20, val_top1_error=1.0)
    edit_row(folder, "epoch", 40, val_top1_error=2.0)
    edit_row(folder, "evaluation", 15, epoch=0.5)
    edit_row(folder, "evaluation", 35, val_top1_error=3.0)

    def edit(saved: Checkpoint) -> Checkpoint:
        return replace(saved, rates=saved.rates | {2: saved.rates[2] | {"val_top1_error": 2.0}})

    edit_checkpoints(folder, edit, 40)


def swapped_and_damaged_checkpoints(folder: Path) -> None:
    one, other = folder / "checkpoint-25.pt", folder / "checkpoint-30.pt"
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)
    with (folder / "checkpoint-35.pt").open("r+b") as file:
        file.write(b"damage")


def an_earlier_state_under_a_later_step(folder: Path) -> None:
    path = folder / "checkpoint-30.pt"
    earlier = checkpoint.decode_checkpoint(checkpoint.read(path), str(path))
    edit_checkpoints(folder, lambda saved: replace(saved, model=earlier.model), 35)


def other_numbers_in_checkpoints(folder: Path) -> None:
    """Edit the weight decay of one checkpoint, and a parameter of another in the 7th digit."""

    def edit_decay(saved: Checkpoint) -> Checkpoint:
        saved.optimizer["param_groups"][0]["weight_decay"] = 0.0
        return saved

    def edit_parameter(saved: Checkpoint) -> Checkpoint:
        saved.model["fc.weight"][0, 0] += 1e-7 * saved.model["fc.weight"].norm()
        return saved

    edit_checkpoints(folder, edit_decay, 25)
    edit_checkpoints(folder, edit_parameter, 40)


def another_seed_in_the_configuration(folder: Path) -> None:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("\nseed: 0\n", "\nseed: 1\n"))


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        (
            edited_rows,
            [
                "train row of step 32: loss is 0.5",
                "train row of step 1: gradient_norm is",
                "train row of step 17: lr is 0.1",
                "the row of epoch 1, val_top1_error",
                "epoch row of step 40: val_top1_error is 2.0",
                "evaluation row of step 15: epoch is 0.5",
                "evaluation row of step 35: val_top1_error is 3.0",
                "the row of step 35, val_top1_error",
            ],
        ),
        (
            swapped_and_damaged_checkpoints,
            [
                "checkpoint-25.pt: step is 30, and must be 25",
                "checkpoint-30.pt: step is 25, and must be 30",
                "checkpoint-35.pt is damaged",
            ],
        ),
        (an_earlier_state_under_a_later_step, ["checkpoint-35.pt: model "]),
        (
            other_numbers_in_checkpoints,
            [
                "checkpoint-25.pt 0.weight_decay: optimizer settings is 0.0",
                "checkpoint-40.pt: model fc.weight is not",
            ],
        ),
        (another_seed_in_the_configuration, ["config.yaml: fingerprint is"]),
    ],
)
def test_an_edited_run_is_not_confirmed(
    forge: Callable[[Path], None], named: list[str], copied: Path
) -> None:
    forge(copied)
    code, found = verified(copied)
    assert code == 1
    for each in named:
        assert any(each in mismatch for mismatch in found.mismatches), (each, found.mismatches)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["seed=1"], "train row of step 1: "),
        (["data.augmentation=none"], "train row of step 1: "),
    ],
    ids=["another seed", "another augmentation"],
)
def test_a_run_under_the_recipe_of_another_is_not_confirmed(
    words: list[str], first: str, honest: Path, tmp_path: Path
) -> None:
    folder = made_run(tmp_path / "run", *words)
    relabel(folder, honest)
    code, found = verified(folder, "--places", "2")
    assert code == 1
    assert any(first in mismatch for mismatch in found.mismatches), found.mismatches


def test_another_order_of_the_examples_is_not_confirmed(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ImageClassification.example_order
    with monkeypatch.context() as patched:
        patched.setattr(
            ImageClassification,
            "example_order",
            lambda self, epoch: order(self, epoch)[::-1].copy(),
        )
        folder = made_run(tmp_path / "run")
    _, found = verified(folder, "--places", "2")
    assert any("order of examples is" in mismatch for mismatch in found.mismatches)
    folder.with_name("out.json").unlink()
    relabel(folder, honest)  # with the hash of the right order
    code, found = verified(folder, "--places", "2")
    assert code == 1
    assert any("train row of step 1: " in mismatch for mismatch in found.mismatches)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seed=1"], "seed=1 would change the run of"),
        (["--out", "run/checkpoint.pt"], "is in the run folder, which stays as it is"),
        (["--out", "there.json"], "there.json exists already, and is never overwritten"),
        (["--out", "nowhere/a.json"], "nowhere is not a folder"),
        (["--tolerance", "2"], "2 is not a number of 0 or more and below 1"),
    ],
)
def test_refusals(
    words: list[str],
    said: str,
    copied: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(copied.parent)
    Path("there.json").write_text("mine")
    assert main(["run", *words]) == 2
    assert said in capsys.readouterr().err
    assert Path("there.json").read_text() == "mine"


def test_other_data_and_other_kinds_of_runs_are_refused(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def of_other_data(saved: Checkpoint) -> Checkpoint:
        return replace(saved, data=dict.fromkeys(saved.data, "0" * 64))

    edit_checkpoints(copied, of_other_data)
    assert main([str(copied), *OPTIONS]) == 2
    assert "are not those that the run was trained on" in capsys.readouterr().err
    (copied / "metrics.jsonl").write_text("")
    assert main([str(copied), *OPTIONS]) == 2
    assert "has no row of a step" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    recipe = compose_recipe(*WORDS, "strategy=async", "cluster=even")
    (other / "config.yaml").write_text(config.to_yaml(recipe))
    assert main([str(other)]) == 2
    assert "supports only strategy.name=allreduce or sync" in capsys.readouterr().err


def test_the_seed_draws_the_places() -> None:
    steps = range(10, 200, 10)
    drawn = [draw_places(steps, 5, seed) for seed in range(20)]
    assert {(each[0], each[-1], len(each)) for each in drawn} == {(0, 190, 5)}
    assert drawn[3] == draw_places(steps, 5, 3)
    assert {step for each in drawn for step in each} > {20, 100, 150}
    assert draw_places([], 5, 0) == [0]


def test_a_value_that_rounding_may_change_too_much_confirms_nothing() -> None:
    evidence = Evidence(1e-5)
    evidence.close("loss", "here", 1.0, 1.0, rounding=0.01)
    evidence.counted("top1_error", "here", 50.0, 50.0, 0.01, examples=1000)
    assert (evidence.compared, evidence.mismatches) == ({}, [])
    assert evidence.unresolved == {"loss": 1, "top1_error": 1}
    evidence.close("loss", "here", float("nan"), 1.0, rounding=0.01)
    evidence.close("loss", "here", 10**400, 1.0, rounding=0.0)
    evidence.tensors("model", "here", {"a": torch.ones(2)}, {"a": torch.ones(3)}, {"a": 0})
    assert len(evidence.mismatches) == 3
