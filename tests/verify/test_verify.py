"""Verification of runs: an honest one is confirmed, and each planted forgery is found."""

import json
import math
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.launching import launch

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.errors import DivergedError, UsageError
from lsgd.inputs.consistency import further_sets
from lsgd.learner import Learner
from lsgd.own_parts import OPTIMIZER, OwnPart
from lsgd.recipe import Recipe
from lsgd.rules.optim import set_lr
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.metrics import row_callback
from lsgd.run.read import Run, read_run, steps_until_divergence
from lsgd.run.rows import Row, read_rows
from lsgd.run.verification import RunVerification, read_verification, rows_digest
from lsgd.strategy.allreduce import AllReduce
from lsgd.train import train
from lsgd.verify import checkpoints
from lsgd.verify.__main__ import main, recipe_here
from lsgd.verify.evidence import Evidence, tolerance_of
from lsgd.verify.records import _check_metrics, check_keys, check_loader
from lsgd.verify.reexecution import (
    ExecutedSteps,
    compare_steps,
    draw_places,
    norm_rounding,
    perturb,
    restore,
)
from lsgd.workloads import open_workload
from lsgd.workloads.images import ImageClassification

# 2 epochs of 10 steps, with evaluations after steps 5 and 15 too. Of the checkpoints after each
# step these are kept.
WORDS = (
    "+recipe=digits", "epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "workers=3", "worker_batch=48", "schedule.reference_batch=48", "precision=float64",
    "log_steps=1", "checkpoint_steps=1", "keep_checkpoints=verify", "workers_per_pass=3",
    "data.augmentation=shift_flip", "schedule.reference_lr=0.02", "evaluation.every=0.5",
)  # fmt: skip
KEPT = (1, 2, 5, 6, 9, 10, 11, 13, 14, 17, 18, 19, 20)
SAYING = ("loss", "gradient_norm")
"""The keys of a train row, besides the error, that are computed again."""
SHORT = 3
"""The step before which a short run ends."""


def made_run(folder: Path, *words: str) -> Path:
    train(compose_recipe(*WORDS, *words, f"run_dir={folder}"))
    return folder


class EndOfShortRunError(Exception):
    """The error that ends a short run."""


def made_short_run(folder: Path, *words: str) -> Path:
    def end(row: Row) -> None:
        if row["step"] == SHORT:
            raise EndOfShortRunError

    with row_callback(end), pytest.raises(EndOfShortRunError):
        made_run(folder, *words)
    return folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its third step, and resumed."""
    return made_run(made_short_run(tmp_path_factory.mktemp("honest") / "run"))


@pytest.fixture(scope="module")
def of_another_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that is relabelled, so that no test may edit it."""
    return made_short_run(tmp_path_factory.mktemp("other") / "run", "seed=1")


@pytest.fixture
def copied(honest: Path, tmp_path: Path) -> Path:
    return shutil.copytree(honest, tmp_path / "run", symlinks=True)


def options(*places: int) -> tuple[str, ...]:
    """The options with which two steps after each of these places of the run are verified."""
    drawn = (seed for seed in range(10**6) if draw_places(KEPT, len(places), seed) == [*places])
    return "--steps", "2", "--places", str(len(places)), "--seed", str(next(drawn))


OPTIONS = options(0, 20)


def verified(folder: Path, *words: str) -> tuple[int, RunVerification]:
    out = folder.with_name("out.json")
    code = main([str(folder), *OPTIONS, "--out", str(out), *words])
    return code, read_verification(out)


def edit_rows(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    rows = read_rows(folder / "metrics.jsonl")
    for row in rows:
        edit(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def delete_row(folder: Path, kind: str, step: int) -> None:
    rows = read_rows(folder / "metrics.jsonl")
    left = [row for row in rows if (row["kind"], row["step"]) != (kind, step)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in left))


def edit_row(folder: Path, kind: str, step: int, **values: Any) -> None:
    edit_rows(folder, lambda row: (row["kind"], row["step"]) == (kind, step) and row.update(values))


def load(path: Path) -> Checkpoint:
    saved = checkpoints.load(path)
    assert saved is not None
    return saved


def step_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def edit_checkpoints(folder: Path, edit: Callable[[Checkpoint], Checkpoint], *steps: int) -> None:
    """Replace the checkpoints of these steps by edited ones that have the right check sums."""
    for path in checkpoint.checkpoint_files(folder):
        if not steps or step_of(path) in steps:
            saved = load(path)
            is_milestone = path.name.startswith("milestone")
            checkpoint.write(edit(saved), folder, milestone=is_milestone, keep=set)


def relabel(folder: Path, honest: Path) -> None:
    """Let a run of another recipe claim to be of the honest one, as a careful forger would."""
    shutil.copy(honest / "config.yaml", folder / "config.yaml")
    recipe = config.read_recipe(folder / "config.yaml")
    edit_rows(
        folder, lambda row: row["kind"] == "train" and row.update(lr=recipe.lr(row["step"] - 1))
    )
    groups = load(honest / "checkpoint-20.pt").optimizer["param_groups"]
    edit_checkpoints(folder, lambda saved: _relabelled(saved, recipe, groups))


def _relabelled(saved: Checkpoint, recipe: Recipe, groups: list[dict[str, Any]]) -> Checkpoint:
    order = open_workload(recipe, torch.device("cpu")).example_order(saved.epoch)
    lr = recipe.lr(saved.step - 1)
    return replace(
        saved,
        fingerprint=recipe.fingerprint,
        order=checkpoint.order_hash(order),
        lr=lr,
        optimizer=saved.optimizer | {"param_groups": [group | {"lr": lr} for group in groups]},
    )


@pytest.mark.slow  # its fixture trains the run, and imports what training needs
def test_an_honest_run_is_confirmed_and_its_folder_stays_as_it_is(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()}
    assert sorted(map(step_of, checkpoint.checkpoint_files(copied))) == [*KEPT]
    places = [0, 5, 9, 13, 20]
    code, found = verified(copied, *options(*places))
    assert (code, found.mismatches, found.unresolved) == (0, [], {})
    assert {path.name: path.read_bytes() for path in copied.iterdir() if path.is_file()} == before
    assert (found.places, found.executed_steps, found.made_steps) == (places, 8, 20)
    # 22 rows have an lr, and so has each of 13 checkpoints; 8 steps were executed again.
    assert (found.compared["lr"], found.compared["loss"]) == (35, 8)
    # The checkpoints 1, 2, 6, 10, 11 and 14 were computed again.
    assert found.compared["model"] == 6 * len(load(copied / "checkpoint-20.pt").model)
    # The evaluations after steps 10 and 15, and of the checkpoints 5 and 20.
    assert found.compared["val_top1_error"] == 4
    output = capsys.readouterr().out
    assert output.startswith(f"reading {copied}\n")
    assert "each 3 times: 24 steps and 12 evaluations\nallowed: " in output
    assert output.index("allowed: ") < output.index("Confirmed: 8 of 20 steps (40 %)")


@pytest.mark.slow
def test_a_run_that_went_on_to_more_epochs_is_confirmed(tmp_path: Path) -> None:
    """With its checkpoint of the shorter run, which has another fingerprint."""
    folder = made_run(tmp_path / "run", "epochs=1", "schedule.milestones=[]")
    made_run(folder)
    code, verification = verified(folder)
    assert code == 0
    assert "checkpoint-10.pt was saved while the run had epochs=1" in verification.notes


@pytest.mark.slow
def test_rounding_is_measured_where_no_fixed_tolerance_holds(tmp_path: Path) -> None:
    """Other micro-batches change the last bits; float32 at a high lr makes more of them."""
    folder = made_short_run(tmp_path / "run", "precision=float32", "schedule.reference_lr=0.2")
    code, found = verified(folder, "workers_per_pass=1")
    assert code == 0
    assert 0 < found.largest_difference < 0.2


@pytest.mark.slow
def test_a_run_that_diverged_before_its_first_row_is_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DivergedError):
        made_run(
            folder,
            "precision=float32",
            "schedule.reference_lr=1e6",
            "log_steps=50",
            "checkpoint_steps=10",
        )
    by_step = steps_until_divergence(read_run(folder).diverged)
    assert by_step is not None
    assert main([str(folder), "--steps", str(by_step - 1)]) == 2
    assert f"write --steps {by_step} to reach its next one" in capsys.readouterr().err
    code, found = verified(folder, "--steps", str(by_step))
    assert (code, found.compared["divergence"]) == (0, 1)
    assert (found.executed_steps, found.made_steps) == (by_step, by_step)


@pytest.mark.parametrize(
    ("said", "ours", "copy", "result"),
    [
        ("the loss or a gradient of step 7 is not finite; …", 8, 8, "equal"),
        ("the loss or a gradient of step 7 is not finite; …", 8, None, "equal"),
        ("a momentum is not finite before step 8 and was not saved; …", 8, 8, "equal"),
        ("the loss or a gradient of step 7 is not finite; …", None, None, "it does not"),
        ("the loss or a gradient of step 7 is not finite; …", None, 8, "is not compared"),
        ("the loss or a gradient of step 7 is not finite; …", 6, 6, "by step 6"),
        ("the loss or a gradient of step 7 is not finite; …", 6, 7, "is not compared"),
        ("the loss or a gradient of step 70 is not finite; …", None, None, ""),
        ("it burnt", 6, 6, "names no step"),
        (None, 6, 6, "and the run did not"),
        (None, None, 6, "is not compared"),
        (None, None, None, ""),
    ],
)
def test_whether_and_when_steps_diverge_is_compared(
    said: str | None, ours: int | None, copy: int | None, result: str
) -> None:
    rows = [{"kind": "start", "step": 0}]
    ends = [] if said is None else [{"kind": "diverged", "step": 5, "text": said}]
    recipe = compose_recipe(*WORDS)
    own, copied, second = (
        ExecutedSteps(3, step or 10, [{"kind": "start", "step": 3}], diverged_by_step=step)
        for step in (ours, copy, ours)
    )
    evidence = Evidence(1e-5)
    compare_steps(
        Run(Path("run"), recipe, rows + ends), recipe, {}, own, [copied, second], evidence
    )
    words = [*evidence.mismatches, *evidence.notes] if result != "equal" else ["equal"]
    assert evidence.compared == ({"divergence": 1} if result == "equal" else {})
    assert bool(evidence.mismatches) == (
        result in ("it does not", "by step 6", "and the run did not")
    )
    assert any(result in each for each in words) if result else not evidence.mismatches


@pytest.mark.slow
def test_a_run_that_still_trains_is_confirmed_by_the_rows_that_were_read(copied: Path) -> None:
    """The last line is incomplete, and checkpoints have metrics of evaluations that follow it."""
    lines = (copied / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if b'"step": 12,' in line)
    (copied / "metrics.jsonl").write_bytes(b"".join(lines[: place + 1]) + lines[place + 1][:9])
    code, found = verified(copied)
    assert (code, found.mismatches, found.places) == (0, [], [0, 14])
    newer = [f"checkpoint-{step}.pt is newer than the rows that were read, and is left out"
             for step in (17, 18, 19, 20)]  # fmt: skip
    assert [note for note in found.notes if "newer" in note] == newer
    assert found.rows_sha256 == rows_digest(copied)
    run = read_run(copied)
    (copied / "metrics.jsonl").write_bytes(b"".join(lines))
    assert rows_digest(copied, len(run.rows)) != rows_digest(copied)
    assert rows_digest(copied, len(lines)) == rows_digest(copied)
    finished = read_run(copied)
    assert not checkpoints.is_newer_than_rows(load(copied / "checkpoint-20.pt"), finished)
    lost = replace(run, rows=[row for row in run.rows if row["kind"] != "epoch"])
    assert not checkpoints.is_newer_than_rows(load(copied / "checkpoint-20.pt"), lost)


def test_a_checkpoint_that_was_deleted_meanwhile_is_noted(tmp_path: Path) -> None:
    evidence = Evidence(1e-5)
    assert list(checkpoints.read_checkpoints([tmp_path / "checkpoint-5.pt"], evidence)) == []
    assert evidence.notes == [
        "checkpoint-5.pt was deleted during the verification, and is not compared"
    ]
    (tmp_path / "checkpoint-5.pt").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        list(checkpoints.read_checkpoints([tmp_path / "checkpoint-5.pt"], evidence))


@pytest.mark.slow
def test_images_are_read_by_the_loader_of_the_run(tmp_path: Path) -> None:
    """DALI, which is chosen where it is installed, resizes to other pixels than torchvision."""
    old = Path(__file__).parent.parent / "fixtures/0.1"
    words = [
        f"data.root={old / 'images'}",
        "inputs.decoders=0",
        "--out",
        str(tmp_path / "out.json"),
    ]
    assert main([str(old / "images-killed"), "--steps", "1", *words]) == 0
    found = read_verification(tmp_path / "out.json")
    assert found.compared["loss"] == 2
    assert "torchvision" in found.machine
    assert not any(note.startswith("inputs") for note in found.notes)


@pytest.mark.parametrize(("where", "decode_on"), [("CPU", "cpu"), ("GPU, 65% in hardware", "auto")])
def test_dali_decodes_and_rounds_pixels_as_in_the_run(
    where: str, decode_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number of threads and its version decide no pixel."""
    monkeypatch.setattr("lsgd.verify.__main__.is_dali_installed", lambda: True)
    recipe = compose_recipe("+recipe=bs256", "inputs.dtype=float16", "inputs.hardware_share=0.5")
    rows = [{"kind": "start", "step": 0, "inputs": f"DALI 2.4.0 on the {where}, 16 threads"}]
    inputs = recipe_here(run := Run(Path("run"), recipe, rows), []).inputs
    assert (inputs.loader, inputs.dtype, inputs.decode_on) == ("dali", "float16", decode_on)
    assert inputs.hardware_share == 0.5

    for here, notes in ((where, 0), ("TPU", 1)):
        evidence = Evidence(1e-5)
        check_loader(run, f"DALI 2.5.0 on the {here}, 2 threads", evidence)
        assert len(evidence.notes) == notes


def test_the_rounding_of_a_large_gradient_norm_is_measured() -> None:
    """One sum of 5 million float32 numbers is wrong in the fourth digit; one of few is not."""
    large, small = torch.nn.Linear(5000, 1000, bias=False), torch.nn.Linear(1000, 1)
    assert 1e-6 < norm_rounding(large, "float32") < 1e-3
    assert norm_rounding(small, "float32") < 1e-6
    assert norm_rounding(small, "float64") < 1e-12


def test_the_larger_effect_of_two_opposite_perturbations_is_allowed() -> None:
    """As that of an input of a ReLU near 0, which one of the two takes across it."""
    made = {"a": torch.ones(2)}
    copies = [{"a": torch.ones(2)}, {"a": torch.ones(2) * 1.001}]
    for change, is_allowed in ((1.007, True), (1.009, False)):
        for order in (copies, copies[::-1]):
            evidence = Evidence(1e-5)
            evidence.tensors("model", "here", {"a": torch.ones(2) * change}, made, order)
            assert bool(evidence.compared) == is_allowed
            assert bool(evidence.mismatches) != is_allowed


def test_opposite_perturbations_change_parameters_equally() -> None:
    recipe = compose_recipe(*WORDS)
    models = []
    for direction in (1, -1, None):
        learner = Learner(recipe, SingleComm(), torch.device("cpu"), {})
        if direction:
            perturb(learner, 0.0, direction)
        models.append([*learner.model.parameters()])
    for one, other, own in zip(*models, strict=True):
        assert torch.equal(one - own, own - other)
        assert torch.allclose((one - own).abs(), own.abs() * 2**-48, rtol=0.2, atol=0)


def test_rounding_of_the_norm_by_which_gradients_are_clipped_changes_the_copy() -> None:
    recipe = compose_recipe(*WORDS, "optim.clip_norm=1")
    learners = [Learner(recipe, SingleComm(), torch.device("cpu"), {}) for _ in range(2)]
    before = [parameter.detach().clone() for parameter in learners[0].model.parameters()]
    for learner, rounding in zip(learners, (0.0, 0.5), strict=True):
        perturb(learner, rounding, 1)
        strategy = learner.strategy
        assert isinstance(strategy, AllReduce)
        for parameter in learner.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        strategy.reducer.gradient_norm.fill_(10.0)
        for group in strategy.optimizer.param_groups:
            group |= {"lr": 1.0, "weight_decay": 0.0}
        strategy.optimizer.step()
    for start, first, second in zip(
        before, *(each.model.parameters() for each in learners), strict=True
    ):
        assert torch.allclose((second - start), 1.5 * (first - start), atol=1e-9)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_gradients_that_are_sent_in_float16_change_the_copy_as_its_rounding(precision: str) -> None:
    """By half the distance of two numbers of float16 at most, which holds for subnormals too."""
    recipe = compose_recipe(*WORDS, f"precision={precision}", "gradient_compression=fp16")
    assert tolerance_of(recipe) == 1e-3
    gradients = torch.tensor([0.0, 1.0, -1.0, 1e-3, 2.0**-20])
    changes = []
    for direction in (1, -1):
        learner = Learner(recipe, SingleComm(), torch.device("cpu"), {})
        perturb(learner, 0.0, direction)
        strategy = learner.strategy
        assert isinstance(strategy, AllReduce)
        first = next(iter(learner.model.parameters()))
        first.grad = gradients.repeat(first.numel() // 5 + 1)[: first.numel()].view_as(first)
        strategy.optimizer.step()
        changes.append((first.grad.flatten()[:5] - gradients).double())
    scale = strategy.loss_scale.scale.item() if strategy.loss_scale else 1.0
    least = max(2.0**-20, 2.0**-14 / scale)
    expected = torch.tensor([0, 1, 1, 1e-3, least], dtype=torch.float64) * 2**-11
    torch.testing.assert_close(changes[0].abs(), expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(changes[0], -changes[1], rtol=1e-3, atol=0)


def after_steps(recipe: Recipe, count: int) -> Checkpoint:
    """Return the state of a new learner after updates by gradients of ones."""
    learner = Learner(recipe, SingleComm(), torch.device("cpu"), {})
    strategy = learner.strategy
    assert isinstance(strategy, AllReduce)
    for step in range(count):
        for parameter in learner.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        set_lr(strategy.optimizer, recipe.lr(step))
        strategy.optimizer.step()
        strategy.next_step = step + 1
    return deepcopy(learner.checkpoint())


def restored(recipe: Recipe, saved: Checkpoint, **forged: Any) -> list[str]:
    """Restore a checkpoint whose optimizer groups have forged values; return the mismatches."""
    groups = [group | forged for group in saved.optimizer["param_groups"]]
    edited = replace(saved, optimizer=saved.optimizer | {"param_groups": groups})
    evidence = Evidence(1e-5)
    learner = Learner(recipe, SingleComm(), torch.device("cpu"), {})
    restore(learner, edited, "checkpoint-2.pt", evidence)
    return evidence.mismatches


@pytest.mark.slow  # builds several networks
def test_the_last_lr_of_a_velocity_is_that_of_the_step_before() -> None:
    """The lr rises from step to step, and that of the last layer is ten times as high."""
    recipe = compose_recipe(*WORDS, "optim=lars", f"optim.head_lr={SHORT}")
    saved = after_steps(recipe, 2)
    assert restored(recipe, saved) == []
    assert "last_lr" in restored(recipe, saved, last_lr=0.5, lr=0.5)[0]
    assert "weight_decay" in restored(recipe, saved, weight_decay=0.5)[0]


class Prodigal(torch.optim.Optimizer):
    """An optimizer that keeps an estimate and a count in its groups, as Prodigy does."""

    def __init__(self, params: Any, lr: float, growth: float = 2.0) -> None:
        super().__init__(params, {"lr": lr, "growth": growth, "d": 1e-6})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group |= {"d": group["d"] * group["growth"], "k": group.get("k", 0) + 1}


@pytest.mark.slow  # builds several networks
def test_what_an_optimizer_of_ones_own_counts_in_its_groups_is_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("prodigal")
    monkeypatch.setitem(sys.modules, "prodigal", module)
    monkeypatch.setattr(module, "Prodigal", Prodigal, raising=False)
    part = OwnPart(
        OPTIMIZER, "prodigal:Prodigal", Prodigal, {}, frozenset({"params", "lr"}), True, "source"
    )
    monkeypatch.setattr("lsgd.own_parts._imported", {(OPTIMIZER.key, part.path): part})
    recipe = compose_recipe(*WORDS)
    named = replace(recipe.optim, name=part.path, source=part.source, options={"growth": 1.5})
    recipe = replace(recipe, optim=named)
    saved = after_steps(recipe, 2)
    assert saved.optimizer["param_groups"][0]["k"] == 2
    assert restored(recipe, saved) == []
    for key in ("growth", "weight_decay"):
        assert key in restored(recipe, saved, **{key: 0.25})[0]


@pytest.mark.slow
def test_a_run_that_starts_from_the_state_of_an_optimizer_is_confirmed(
    honest: Path, tmp_path: Path
) -> None:
    start = honest / "checkpoint-20.pt"
    folder = made_short_run(tmp_path / "run", f"model.start={start}", "model.start_optimizer=true")
    assert verified(folder)[1].mismatches == []


@pytest.mark.distributed
def test_three_processes_confirm_the_run_of_one(copied: Path) -> None:
    """And draw the same places: there are more checkpoints than places, and no seed is given."""
    ran = launch(
        "forked",
        3,
        "-m",
        "lsgd.verify",
        str(copied),
        "--steps",
        "2",
        "log_steps=1",
        "--places",
        "3",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("reading ") == 1
    found = read_verification(copied.with_name("run.verification.json"))
    assert found.machine.startswith("3 processes")
    assert found.executed_steps >= 3
    # From the places 0 and 1 step 2 is executed twice.
    assert found.compared["loss"] == sum(min(2, 20 - place) for place in found.places)


@pytest.mark.slow
@pytest.mark.distributed
def test_one_process_confirms_the_run_of_two_in_float32(tmp_path: Path) -> None:
    """Its sums are in another order, and at the high lr of epoch 2 a ReLU's input crosses 0."""
    words = ["+recipe=digits", "epochs=4", "schedule.milestones=[2,3]", "schedule.warmup_epochs=1"]
    folder = tmp_path / "run"
    ran = launch("forked", 2, "-m", "lsgd.train", *words, f"run_dir={folder}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert main([str(folder), "--seed", "924593"]) == 0
    found = read_verification(folder.with_name("run.verification.json"))
    assert 1e-5 < found.largest_difference < 0.2


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
def test_the_steps_to_the_next_row_are_named_before_any_is_executed(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in checkpoint.checkpoint_files(copied):
        path.unlink()
    rows = [row for row in read_rows(copied / "metrics.jsonl") if row["kind"] != "train"]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([str(copied), *OPTIONS]) == 2
    output = capsys.readouterr()
    assert "write --steps 5 to reach its next one" in output.err
    assert "allowed" not in output.out


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


    Then an error that the checkpoints do not have, a final error that the last one has too, and
    the epoch and the error of evaluations within epochs. And delete a row of a step that is not
    executed.
    """
    edit_row(folder, "train", 16, loss=0.5)
    norm = next(row["gradient_norm"] for row in read_rows(folder / "metrics.jsonl")[1:])
    edit_row(folder, "train", 1, gradient_norm=norm * (1 + 1e-7))
    edit_row(folder, "train", 8, lr=0.1)
    edit_row(folder, "epoch", 10, val_top1_error=1.0)
    edit_row(folder, "epoch", 20, val_top1_error=2.0)
    edit_row(folder, "evaluation", 5, epoch=0.4)
    edit_row(folder, "evaluation", 15, val_top1_error=3.0)
    delete_row(folder, "train", 12)

    def edit(saved: Checkpoint) -> Checkpoint:
        return replace(saved, rates=saved.rates | {2: saved.rates[2] | {"val_top1_error": 2.0}})

    edit_checkpoints(folder, edit, 20)


def metrics_that_the_recipe_does_not_compute(folder: Path) -> None:
    edit_row(folder, "epoch", 10, test_loss=0.1)
    edit_row(folder, "evaluation", 15, val_ppl=0.1)
    edit_row(folder, "train", 7, top5_error=0.1)


def rows_cut_out_and_renumbered(folder: Path) -> None:
    """Cut out step 2, say, which looked bad, and give its number to the next, and so on."""
    recipe = config.read_recipe(folder / "config.yaml")
    rows = read_rows(folder / "metrics.jsonl")
    trained = [row for row in rows if row["kind"] == "train" and row["step"] <= 10]
    for row, following in pairwise(trained[1:]):
        step = row["step"]
        row |= following | {"step": step, "epoch": recipe.epoch(step), "lr": recipe.lr(step - 1)}
    rows.remove(trained[-1])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def swapped_and_damaged_checkpoints(folder: Path) -> None:
    one, other = folder / "checkpoint-5.pt", folder / "checkpoint-6.pt"
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)
    with (folder / "checkpoint-13.pt").open("r+b") as file:
        file.write(b"damage")


def edited_checkpoints(folder: Path) -> None:
    """Edit the weight decay of one checkpoint, and a parameter of another in the 7th digit.

    And give one the state of the checkpoint before it, delete the row of the first epoch, and let
    the run be judged by another metric.
    """

    def edit_decay(saved: Checkpoint) -> Checkpoint:
        saved.optimizer["param_groups"][0]["weight_decay"] = 0.0
        return saved

    def edit_parameter(saved: Checkpoint) -> Checkpoint:
        saved.model["fc.weight"][0, 0] += 1e-7 * saved.model["fc.weight"].norm()
        return saved

    earlier = load(folder / "checkpoint-13.pt")
    edit_checkpoints(folder, edit_decay, 5)
    edit_checkpoints(folder, lambda saved: replace(saved, model=earlier.model), 14)
    delete_row(folder, "epoch", 10)
    edit_row(folder, "start", 0, metric="top5_error")
    edit_checkpoints(folder, edit_parameter, 20)


def a_divergence_where_the_run_looked_good(folder: Path) -> None:
    """Delete all after step 9, and let the run claim to have diverged in the next step."""
    text = "the loss or a gradient of step 9 is not finite; nothing was saved after the step before"
    kept = [row for row in read_rows(folder / "metrics.jsonl") if row["step"] <= 9]
    kept.append({"kind": "diverged", "step": 9, "text": text})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    for path in checkpoint.checkpoint_files(folder):
        if step_of(path) > 9:
            path.unlink()


def another_seed_in_the_configuration(folder: Path) -> None:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("\nseed: 0\n", "\nseed: 1\n"))


@pytest.mark.parametrize(
    ("forge", "places", "named"),
    [
        (
            edited_rows,
            (0, 14, 20),
            [
                "train row of step 16: loss is 0.5",
                "train row of step 1: gradient_norm is",
                "train row of step 8: lr is 0.1",
                "the row of epoch 1, val_top1_error",
                "epoch row of step 20: val_top1_error is 2.0",
                "evaluation row of step 5: epoch is 0.4",
                "evaluation row of step 15: val_top1_error is 3.0",
                "the row of step 15, val_top1_error",
                "train row of step 12: it is missing",
            ],
        ),
        (rows_cut_out_and_renumbered, (0, 20), ["train row of step 2: loss is"]),
        (
            swapped_and_damaged_checkpoints,
            (0, 20),
            [
                "checkpoint-5.pt: step is 6, and must be 5",
                "checkpoint-6.pt: step is 5, and must be 6",
                "checkpoint-13.pt is damaged",
            ],
        ),
        (
            edited_checkpoints,
            (0, 5, 13, 19, 20),
            [
                "checkpoint-5.pt 0.weight_decay: optimizer settings is 0.0",
                "checkpoint-14.pt: model ",
                "checkpoint-20.pt: model fc.weight is not",
                "epoch row of epoch 1: it is missing",
                "start row of step 0: final metric is top5_error, and must be top1_error",
            ],
        ),
        pytest.param(
            another_seed_in_the_configuration,
            (0, 20),
            ["config.yaml: fingerprint is"],
            marks=pytest.mark.slow,
        ),
        (
            metrics_that_the_recipe_does_not_compute,
            (0, 5, 20),
            [
                "epoch row of step 10: test_loss is not computed by the recipe",
                "row of epoch 1, by checkpoints: test_loss is not computed by the recipe",
                "evaluation row of step 15: val_ppl is not computed by the recipe",
                "train row of step 7: top5_error is not computed by the recipe",
            ],
        ),
        (
            a_divergence_where_the_run_looked_good,
            (0, 20),
            ["after step 9: the run says that it diverged by step 10; executed again it does not"],
        ),
    ],
)
def test_an_edited_run_is_not_confirmed(
    forge: Callable[[Path], None], places: tuple[int, ...], named: list[str], copied: Path
) -> None:
    forge(copied)
    code, found = verified(copied, *options(*places))
    assert code == 1
    for each in named:
        assert any(each in mismatch for mismatch in found.mismatches), (each, found.mismatches)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_not_confirmed(
    copied: Path, of_another_seed: Path, honest: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(of_another_seed, tmp_path / "other", symlinks=True)
    relabel(other, honest)
    shutil.copy(other / "checkpoint-2.pt", copied / "checkpoint-2.pt")
    code, found = verified(copied)
    assert code == 1
    assert found.mismatches[0].startswith("checkpoint-2.pt: model ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("seed=1", "train row of step 1: "),
        ("data.augmentation=none", "train row of step 1: "),
        ("optim.weight_decay=0.0", "train row of step 2: "),
        ("schedule.reference_lr=0.021", "train row of step 2: "),
    ],
)
def test_a_run_under_the_recipe_of_another_is_not_confirmed(
    words: str, first: str, honest: Path, of_another_seed: Path, tmp_path: Path
) -> None:
    """The lr of its rows, and the settings in its checkpoints, are those of the other recipe."""
    folder = tmp_path / "run"
    if words == "seed=1":
        shutil.copytree(of_another_seed, folder, symlinks=True)
    else:
        made_short_run(folder, words)
    relabel(folder, honest)
    code, found = verified(folder)
    assert code == 1
    assert found.mismatches[0].startswith(first), found.mismatches


@pytest.mark.slow
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
        folder = made_short_run(tmp_path / "run")
    _, found = verified(folder)
    assert any("order of examples is" in mismatch for mismatch in found.mismatches)
    folder.with_name("out.json").unlink()
    relabel(folder, honest)  # with the hash of the right order
    code, found = verified(folder)
    assert code == 1
    assert found.mismatches[0].startswith("train row of step 1: ")


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


def test_an_override_before_the_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device=cpu", str(tmp_path)]) == 2
    assert "device=cpu is not a run folder" in (error := capsys.readouterr().err)
    assert "write RUN before overrides" in error


@pytest.mark.slow
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
    evidence.close("loss", "here", 1.0, 1.0, rounding=0.03)
    evidence.counted("top1_error", "here", 50.0, 50.0, 0.03, examples=1000)
    assert (evidence.compared, evidence.mismatches) == ({}, [])
    assert evidence.unresolved == {"loss": 1, "top1_error": 1}
    evidence.counted("top1_error", "here", None, 50.0, math.inf, examples=1000)
    assert (evidence.unresolved["top1_error"], evidence.mismatches) == (2, [])
    evidence.close("loss", "here", float("nan"), 1.0, rounding=0.01)
    evidence.close("loss", "here", 10**400, 1.0, rounding=0.0)
    evidence.tensors("model", "here", {"a": torch.ones(2)}, {"a": torch.ones(3)}, [{"a": 0}])
    assert len(evidence.mismatches) == 3


@pytest.mark.parametrize(
    ("written", "computed", "rounding", "examples", "points"),
    [
        (19.1, 25.0, 0.0075, 50000, 1.6),
        (1.69, 1.69, 0.627, 355, 9.03),
        (0.0, 0.0, 0.0, 355, 0.56),
        (0.0, 0.0, 0.0375, 1000, 0.26),
        (None, None, 0.0, 355, math.inf),
    ],
)
def test_the_points_that_are_allowed_in_a_percentage(
    written: float | None, computed: float | None, rounding: float, examples: int, points: float
) -> None:
    """A relative effect of rounding is that share of the percentage, not of all examples."""

    def is_different(value: float | None) -> bool:
        evidence = Evidence(1e-5)
        evidence.counted("val_top1_error", "here", value, computed, rounding, examples)
        return bool(evidence.mismatches)

    assert is_different(written) == (written == 19.1)
    if computed is not None:
        assert not is_different(computed + 0.99 * points)
        assert is_different(computed + 1.01 * points)
    else:
        assert is_different(1.0)


@pytest.mark.parametrize(
    ("key", "is_confirmed"),
    [("val_top1_error", True), ("val_macro_error", True), ("val_mean_distance", False)],
)
def test_a_flipped_prediction_is_allowed_in_each_percentage(key: str, is_confirmed: bool) -> None:
    """A metric of one's own is one if its name ends in error."""
    recipe, evidence = compose_recipe(*WORDS), Evidence(1e-5)
    ours, start = {"kind": "epoch", "step": 10, "epoch": 1, key: 50.0}, {"kind": "start", "step": 0}
    theirs = ours | {key: 50.0 + 100 / recipe.data.val_examples}
    executed = ExecutedSteps(0, 10, [start, ours], gradient_norms={10: 1.0})
    run = Run(Path("run"), recipe, [start, theirs])
    compare_steps(run, recipe, {}, executed, [executed, executed], evidence)
    assert (evidence.recomputed, len(evidence.mismatches)) == (is_confirmed, not is_confirmed)


def test_what_is_a_percentage_by_its_name_alone_is_not_confirmed_by_it() -> None:
    """A mean squared error below what flipped predictions change may be forged within it."""
    for value, outcome in ((0.02, (1, 0)), (0.3, (0, 1))):
        evidence = Evidence(1e-5)
        evidence.counted("val_squared_error", "here", value, 0.02, 0.0, 355, is_own=True)
        assert (evidence.recomputed, evidence.unresolved["val_squared_error"]) == outcome
        assert not evidence.mismatches


def test_keys_that_only_another_version_computes_are_noted(tmp_path: Path) -> None:
    """But metrics of an evaluation set that the run does not have differ in any version."""
    recipe = compose_recipe(*WORDS)
    made = {"kind": "epoch", "step": 10, "epoch": 1, "lr": 0.1, "val_loss": 1.0, "mfu": 0.1}
    run = Run(tmp_path, recipe, [made | {"train_loss": 1.0, "val_odd": 2.0, "test_loss": 0.1}])
    evidence = Evidence(1e-5)
    evidence.other_keys_differ = False
    check_keys(run, [{"kind": "epoch", "val_loss": 1.0}], ("val",), evidence)
    assert evidence.mismatches == ["epoch row of step 10: test_loss is not computed by the recipe"]
    assert evidence.notes == [
        "val_odd of rows is not compared, as this version does not compute it"
    ]


def test_an_evaluation_set_that_a_resume_added_is_computed_where_the_data_have_it(
    tmp_path: Path,
) -> None:
    """A config.yaml has the sets of the first start alone, and a set in rows may be made up."""
    recipe = compose_recipe("+recipe=bs256", f"data.root={tmp_path}")
    (tmp_path / "v2.index.npy").touch()
    row = {"kind": "epoch", "step": 10, "epoch": 1, "lr": 0.1, "val_loss": 1.0, "v2_loss": 1.0}
    run = Run(tmp_path, recipe, [row | {"test_loss": 1.0, "../v2_loss": 1.0, "train_loss": 1.0}])
    assert recipe_here(run, []).evaluation.sets == ["val", "v2"]
    assert recipe_here(run, ["evaluation.sets=[val]"]).evaluation.sets == ["val"]

    run, evidence = Run(tmp_path, recipe, [row]), Evidence(1e-5)
    check_keys(run, [], ("val",), evidence, further_sets({"evaluation.v2 path": "89e1"}))
    assert evidence.mismatches == []
    assert "write 'evaluation.sets=[val,v2]', with a data.root that has it" in evidence.notes[0]
    check_keys(run, [], ("val",), evidence)
    assert evidence.mismatches == ["epoch row of step 10: v2_loss is not computed by the recipe"]


def test_an_epoch_that_is_not_evaluated_says_nothing_of_those_that_are(tmp_path: Path) -> None:
    made = {"kind": "epoch", "step": 20, "epoch": 2, "lr": 0.1, "val_loss": 1.0, "mfu": 0.1}
    run = Run(tmp_path, compose_recipe(*WORDS), [made | {"val_top1_error": 9.0, "odd": 1.0}])
    evidence = Evidence(1e-5)
    check_keys(run, [{"kind": "epoch", "lr": 0.1}], ("val",), evidence)
    assert evidence.mismatches == ["epoch row of step 20: odd is not computed by the recipe"]
    check_keys(run, [{"kind": "epoch", "lr": 0.1, "val_loss": 1.0}], ("val",), evidence)
    assert "val_top1_error is not computed" in evidence.mismatches[-1]


def test_a_loss_that_is_not_finite_is_null_in_its_row() -> None:
    evidence = Evidence(1e-5)
    row = {"kind": "epoch", "step": 10, "epoch": 1, "val_loss": None, "val_top1_error": 90.0}
    metrics = {"val_loss": math.inf, "val_top1_error": 90.0}
    _check_metrics("checkpoint-10.pt", "epoch 1", metrics, row, evidence)
    assert (evidence.compared["metric"], evidence.mismatches) == (2, [])
    _check_metrics("checkpoint-10.pt", "epoch 1", metrics, row | {"val_loss": 1.0}, evidence)
    assert len(evidence.mismatches) == 1


def test_settings_of_the_optimizer_are_compared_as_the_lr_is() -> None:
    """Another machine's cosine differs in its last bit."""
    evidence = Evidence(1e-5)
    groups = [[{"lr": lr, "nesterov": True}] for lr in (0.1, 0.1 + 1e-17, 0.1 * (1 + 1e-15))]
    evidence.tensors("optimizer state", "here", groups[2], groups[0], [groups[1]])
    assert (evidence.compared, evidence.mismatches) == ({"optimizer state": 2}, [])
    evidence.tensors("optimizer state", "here", [{"lr": 0.1 + 1e-9}], groups[0], [groups[1]])
    evidence.tensors("optimizer state", "there", [{"lr": 0.1 + 1e-9}], [{"lr": 0.1}], [groups[1]])
    assert len(evidence.mismatches) == 2


def test_the_state_of_an_optimizer_may_have_tuples_and_numbers_that_rounding_changes() -> None:
    """A number that depends on gradients, as the d of Prodigy, is compared as a tensor is."""

    def state(size: float, betas: tuple[float, float] = (0.9, 0.99)) -> dict[str, Any]:
        return {"moments": (torch.ones(2) * size, torch.zeros(2)), "d": size, "betas": betas}

    for written, mismatches in (
        (state(1 + 1e-6), []),
        (state(1 + 1e-3), ["moments.0", "d"]),
        (state(1.0, betas=(0.9, 0.99 + 1e-6)), ["betas.1"]),
    ):
        evidence = Evidence(1e-5)
        evidence.tensors("state", "here", written, state(1.0), [state(1 + 1e-7), state(1.0)])
        assert len(evidence.mismatches) == len(mismatches)
        for mismatch, key in zip(evidence.mismatches, mismatches, strict=True):
            assert key in mismatch
