"""Whole runs of one process, as a user starts them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.event_file import points, texts

from lsgd import config
from lsgd.comm.single import SingleComm
from lsgd.errors import Refused
from lsgd.evaluate import evaluate_checkpoint
from lsgd.inputs import normalise, open_inputs
from lsgd.learner import Learner
from lsgd.models import make_model
from lsgd.rules.metric import TOP1
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.rows import read_rows
from lsgd.run.saver import Saver
from lsgd.step import train_step
from lsgd.train import main, train
from lsgd.vision import models

SHORT = ["epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1", "log_steps=2"]


def recipe(folder: Path, *words: str):
    return config.load_recipe(["+recipe=digits", *SHORT, f"run_dir={folder}", *words])


def curves(folder: Path) -> list[dict]:
    """The rows of a run without what is different each time it is made."""
    timing = ("images_per_second", "data_wait")
    return [
        {key: value for key, value in row.items() if key not in timing}
        for row in read_rows(folder / "metrics.jsonl")
        if row["kind"] != "start"
    ]


def test_a_run_learns_and_leaves_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    error = train(recipe(tmp_path / "run", "epochs=12", "schedule.milestones=[9]"))
    assert error < 20
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == list(range(1, 13))
    assert {"loss", "top1_error", "lr", "gradient_norm", "images_per_second", "data_wait"} <= set(
        next(row for row in rows if row["kind"] == "train")
    )
    assert (tmp_path / "run" / "config.yaml").read_text().count("workers: 16")
    assert f"run folder {tmp_path / 'run'}" in capsys.readouterr().out


def test_the_same_words_again_train_nothing(tmp_path: Path) -> None:
    error = train(recipe(tmp_path / "run"))
    before = curves(tmp_path / "run")
    assert train(recipe(tmp_path / "run")) == error
    assert curves(tmp_path / "run") == before


def test_the_learning_rate_written_is_that_of_the_step_made(tmp_path: Path) -> None:
    """Catches a schedule stepped before or after its time."""
    made = recipe(tmp_path / "run", "log_steps=1")
    train(made)
    rows = [row for row in curves(tmp_path / "run") if row["kind"] == "train"]
    assert [row["lr"] for row in rows] == [made.lr(step) for step in range(made.total_steps)]


@pytest.mark.slow
def test_the_curves_of_runs_of_any_batch_size_overlay(tmp_path: Path) -> None:
    """Against steps, one would be four times as long as the other."""
    for workers, batch, steps in ((2, 32, 46), (8, 128, 12)):
        made = recipe(tmp_path / str(workers), f"workers={workers}", "tail=keep")
        train(made)
        drawn = points(tmp_path / str(workers))
        assert [at for at, _ in drawn["epoch/val_top1_error"]] == [1, 2, 3, 4]
        seen = [step // steps * 1442 + step % steps * batch for step in range(2, 4 * steps + 1, 2)]
        assert [at for at, _ in drawn["train_by_examples/loss"]] == seen
        assert seen[-1] == 4 * 1442
        lr = [made.lr(step - 1) for step in range(2, 4 * steps + 1, 2)]
        assert [value for _, value in drawn["train_by_examples/lr"]] == pytest.approx(lr)


def test_configuration_and_outcome_are_there_to_read(tmp_path: Path) -> None:
    """Also after the same words again, when the file is made anew."""
    made = recipe(tmp_path / "run", "target={top1_error:90,std:1,source:nowhere}")
    for _ in range(2):
        error = train(made)
        read = texts(tmp_path / "run")
        assert {"    workers: 16", "    seed: 0"} <= set(read["config"].splitlines())
        assert read["outcome"] == made.outcome(TOP1, error)
        assert "published" not in read["outcome"]  # which is of other data


def test_a_diverged_run_stops_with_its_own_code_and_keeps_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(tmp_path / "run", "epochs=2", "schedule.milestones=[1.5]"))
    saved = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    words = ["+recipe=digits", *SHORT, "epochs=3", "schedule.milestones=[1.5]"]

    # The same run, but from its third epoch on the images are not numbers.
    monkeypatch.setattr(
        normalise.Normalise, "__call__", lambda self, images: images.float() * torch.nan
    )
    fields = checkpoint.load(saved, "checkpoint")
    longer = config.load_recipe([*words, f"run_dir={tmp_path / 'longer'}"])
    (tmp_path / "longer").mkdir()
    taken_over = replace(fields, fingerprint=longer.fingerprint)
    checkpoint.write(taken_over, tmp_path / "longer")
    before = (tmp_path / "longer" / "checkpoint.pt").read_bytes()

    assert main([*words, f"run_dir={tmp_path / 'longer'}"]) == 3
    assert "step 10 is not finite" in capsys.readouterr().err
    assert "step 10 is not finite" in texts(tmp_path / "longer")["outcome"]
    assert (tmp_path / "longer" / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize("name", ["bs256", pytest.param("bs8k", marks=pytest.mark.slow)])
def test_rehearsal(tmp_path: Path, capsys: pytest.CaptureFixture, name: str) -> None:
    """Six steps of the paper's run with its own lr, and every replacement is printed."""
    words = [
        f"+recipe={name}",
        "rehearse=true",
        f"run_dir={tmp_path}",
        "log_steps=1",
        "workers_per_pass=64",
    ]
    assert main(words) == 0
    original = config.load_recipe([f"+recipe={name}"])
    per_epoch = original.steps_per_epoch
    steps = [0, 1, round(2.5 * per_epoch), 5 * per_epoch, 30 * per_epoch - 1, 30 * per_epoch]
    rows = [row for row in curves(tmp_path) if row["kind"] == "train"]
    assert [(row["step"] - 1, row["lr"]) for row in rows] == [
        (step, pytest.approx(original.lr(step), rel=1e-12)) for step in steps
    ]
    printed = capsys.readouterr().out
    assert "rehearsal done: steps, evaluations and checkpoints" in printed
    for replaced in (
        "worker_batch 32 -> 2",
        "model resnet50 -> small_resnet",
        "data imagenet -> synthetic",
    ):
        assert replaced in printed


def test_a_checkpoint_is_evaluated_to_the_error_it_was_saved_with(tmp_path: Path) -> None:
    train(recipe(tmp_path / "run"))
    last = [row for row in curves(tmp_path / "run") if row["kind"] == "epoch"][-1]
    found = evaluate_checkpoint(tmp_path / "run" / "checkpoint.pt", ["val_batch=7"])
    rates = found["val"].named("val")
    assert rates == {name: last[name] if name != "val_loss" else rates[name] for name in rates}
    assert found["val"].counts["images"] == 355
    # How it was loaded is no part of it, and a group's word chooses as on the training's line.
    assert (
        evaluate_checkpoint(tmp_path / "run" / "checkpoint.pt", ["val_batch=7", "inputs=memory"])
        == found
    )
    with pytest.raises(Refused, match="would make another run"):
        evaluate_checkpoint(tmp_path / "run" / "checkpoint.pt", ["inputs=synthetic"])


@pytest.mark.slow
def test_a_checkpoint_of_resnet50_is_torchvisions(tmp_path: Path) -> None:
    """Its model loads by plain keys, all of them, and answers the same."""
    words = [
        "workers=1",
        "worker_batch=2",
        "epochs=1",
        "schedule.milestones=[]",
        "inputs=synthetic",
    ]
    tiny = ["data.train_examples=2", "data.val_examples=2", "data.image_size=32"]
    train(config.load_recipe(["+recipe=bs64", *words, *tiny, f"run_dir={tmp_path / 'run'}"]))
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"]
    theirs = models.resnet50()
    theirs.load_state_dict(saved, strict=True)
    ours = make_model("resnet50", classes=1000, channels=3, last_gamma=0.0, seed=1)
    ours.load_state_dict(saved, strict=True)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


def test_bfloat16_trains_alike(tmp_path: Path) -> None:
    """Autocast is for the forward pass; parameters and gradients stay float32."""
    error = train(
        recipe(tmp_path / "run", "epochs=12", "schedule.milestones=[9]", "precision=bfloat16")
    )
    assert error < 25
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert saved["model"]["fc.weight"].dtype == torch.float32


def test_channels_last_changes_nothing_but_the_layout(tmp_path: Path) -> None:
    words = ["precision=float64", "epochs=2", "schedule.milestones=[1.5]"]
    train(recipe(tmp_path / "nchw", *words))
    train(recipe(tmp_path / "nhwc", *words, "channels_last=true"))
    nchw, nhwc = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"]
        for name in ("nchw", "nhwc")
    )
    assert all(torch.allclose(nchw[key], nhwc[key], rtol=0, atol=1e-10) for key in nchw)
    assert nhwc["layer1.0.conv1.weight"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("minutes", "expected"), [(1e-9, [2, 4, 5, 7, 9, 10]), (10, [5, 10])])
def test_a_kill_costs_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, expected: list[int]
) -> None:
    """Within an epoch too, but not again after the next step; a shorter run at its ends alone."""
    saved: list[int] = []
    before = Saver.save

    def noted(self: Saver, snapshot: Checkpoint, *, milestone: bool = False) -> None:
        saved.append(snapshot.step)
        before(self, snapshot, milestone=milestone)

    monkeypatch.setattr(Saver, "save", noted)
    words = ["epochs=2", "schedule.milestones=[1.5]", f"checkpoint_minutes={minutes}"]
    train(recipe(tmp_path, *words))
    assert saved == expected


@pytest.mark.parametrize("then", ["true", "false"])
def test_resumed_with_the_other_layout_it_is_the_same_run(tmp_path: Path, then: str) -> None:
    """Momentum is laid out as the parameters are; a fused update would mix it up otherwise."""
    words = ["precision=float64", "epochs=2", "schedule.milestones=[1.5]", "checkpoint_steps=3"]
    first = {"true": "false", "false": "true"}[then]
    train(recipe(tmp_path / "whole", *words))
    made = recipe(tmp_path / "parts", *words, f"channels_last={first}")
    learner = Learner(made, SingleComm(), torch.device("cpu"))
    inputs = open_inputs(made, learner.device)
    for task in learner.strategy.tasks(0, [0, 1, 2]):
        train_step(learner, task, inputs.train(task.passes))
    (tmp_path / "parts").mkdir()
    checkpoint.write(learner.checkpoint(), tmp_path / "parts")
    train(recipe(tmp_path / "parts", *words, f"channels_last={then}"))
    whole, parts = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"]
        for name in ("whole", "parts")
    )
    assert all(torch.allclose(whole[key], parts[key], rtol=0, atol=1e-10) for key in whole)


@pytest.mark.compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
def test_compiled_trains_alike(tmp_path: Path) -> None:
    words = ["epochs=1", "schedule.milestones=[]", "precision=float64", "log_steps=1"]
    train(recipe(tmp_path / "eager", *words))
    train(recipe(tmp_path / "compiled", *words, "compile=true"))
    eager, compiled = curves(tmp_path / "eager"), curves(tmp_path / "compiled")
    assert [row["loss"] for row in compiled[:5]] == pytest.approx(
        [row["loss"] for row in eager[:5]], rel=1e-8
    )


@pytest.mark.gpu
def test_on_a_gpu_the_trajectory_is_that_of_the_cpu(tmp_path: Path) -> None:
    """float64, with channels_last; bf16, compiled, only has to learn."""
    words = ["precision=float64", "epochs=2", "schedule.milestones=[1.5]", "channels_last=true"]
    train(recipe(tmp_path / "cpu", *words, "device=cpu"))
    train(recipe(tmp_path / "gpu", *words, "device=cuda"))
    cpu, gpu = (
        torch.load(tmp_path / name / "checkpoint.pt", map_location="cpu", weights_only=True)[
            "model"
        ]
        for name in ("cpu", "gpu")
    )
    assert all(torch.allclose(cpu[key], gpu[key], rtol=0, atol=1e-8) for key in cpu)
    learns = ["epochs=12", "schedule.milestones=[9]", "precision=bfloat16", "compile=true"]
    assert train(recipe(tmp_path / "bf16", *learns, "channels_last=true", "device=cuda")) < 25


@pytest.mark.gpu
def test_on_a_gpu_graphs_replay_the_run(tmp_path: Path) -> None:
    """Of every part and kind of pass there is a graph, and the numbers are those without."""
    from torch._dynamo.utils import counters

    words = ["epochs=2", "schedule.milestones=[1.5]", "channels_last=true", "compile=true"]
    for name, graphs in (("launched", "false"), ("replayed", "true")):
        torch._dynamo.reset()
        counters.clear()
        train(recipe(tmp_path / name, *words, f"cuda_graphs={graphs}", "device=cuda"))
    assert not counters["inductor"]["cudagraph_skips"]
    launched, replayed = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"]
        for name in ("launched", "replayed")
    )
    assert all(torch.allclose(launched[key], replayed[key], atol=1e-5) for key in launched)


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["synthetic", "memory"])
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["precision=bfloat16", "channels_last=true"],
        pytest.param(["optim.fused=apex"], marks=pytest.mark.apex),
    ],
)
def test_a_step_does_not_wait_for_the_gpu(tmp_path: Path, words: list[str], loader: str) -> None:
    """Nothing in it asks the device for a value, its loader included; the guard looks at the step
    before by an event."""
    made = recipe(tmp_path, "device=cuda", f"inputs={loader}", "workers_per_pass=4", *words)
    device = torch.device("cuda")
    learner = Learner(made, SingleComm(), device)
    inputs = open_inputs(made, device)
    for task in learner.strategy.tasks(0, [0, 1, 2, 3]):
        # The first steps compile, choose algorithms and make the momentum.
        torch.cuda.set_sync_debug_mode("error" if task.step > 1 else "default")
        try:
            train_step(learner, task, inputs.train(task.passes))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    learner.strategy.guard.check()


def test_rows_are_json_that_any_reader_takes(tmp_path: Path) -> None:
    """NaN and Infinity, which json.dumps writes by default, are not JSON."""
    train(recipe(tmp_path))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert {row["kind"] for row in rows} == {"start", "train", "epoch"}
