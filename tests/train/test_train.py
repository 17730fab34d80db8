"""Whole runs of one process, as a user starts them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.differences import distance
from helpers.event_file import points, texts
from helpers.reference_run import newest_checkpoint

from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.evaluate import evaluate_path
from lsgd.inputs import open_inputs, pixels
from lsgd.learner import Learner
from lsgd.models import make_model
from lsgd.rules.metric import TOP1
from lsgd.run import checkpoint
from lsgd.run.checkpoint import Checkpoint
from lsgd.run.read import read_run
from lsgd.run.rows import depends_on_hardware, read_rows
from lsgd.run.saver import CheckpointSaver
from lsgd.step import train_step
from lsgd.train import main, train
from lsgd.vision import models

SHORT = ["epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1", "log_steps=2"]


def recipe(folder: Path, *words: str):
    return compose_recipe("+recipe=digits", *SHORT, f"run_dir={folder}", *words)


SAVED = ("fingerprint", "step", "epoch", "order", "lr", "rates", "data")
"""The fields of a checkpoint that are neither tensors nor have paths."""


def curves(folder: Path) -> list[dict]:
    """The rows of a run without what is different each time it is made."""
    return [
        {key: value for key, value in row.items() if not depends_on_hardware(key)}
        for row in read_rows(folder / "metrics.jsonl")
        if row["kind"] != "start"
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True, map_location="cpu")["model"]


def same(one: Path, other: Path, atol: float = 1e-10) -> bool:
    """Up to the order of sums, in float64."""
    ours, theirs = weights(one), weights(other)
    return all(torch.allclose(ours[key], theirs[key], rtol=0, atol=atol) for key in theirs)


WHOLE = [
    "epochs=12", "schedule.milestones=[9]", "log_steps=1",
    "target={top1_error:90,std:1,source:nowhere}",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a run of 12 epochs, which its tests leave as it is, and the run's number."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train(recipe(folder, *WHOLE))


def test_a_run_learns_and_leaves_what_it_did(finished: tuple[Path, float]) -> None:
    folder, error = finished
    assert error < 20
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == list(range(1, 13))
    first = next(row for row in rows if row["kind"] == "train")
    speed = {"images_per_second", "data_wait", "step_seconds", "peak_memory_mb"}
    assert {"loss", "top1_error", "lr", "gradient_norm", *speed} <= set(first)
    assert first["step_seconds"] * first["images_per_second"] == pytest.approx(256)
    assert (folder / "config.yaml").read_text().count("workers: 16")


def test_rows_are_json_that_any_reader_takes(finished: tuple[Path, float]) -> None:
    """NaN and Infinity, which json.dumps writes by default, are not JSON."""
    lines = (finished[0] / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert {row["kind"] for row in rows} == {"start", "train", "epoch"}


def test_the_learning_rate_written_is_that_of_the_step_made(finished: tuple[Path, float]) -> None:
    """Catches a schedule stepped before or after its time."""
    made = recipe(finished[0], *WHOLE)
    rows = [row for row in curves(finished[0]) if row["kind"] == "train"]
    assert [row["lr"] for row in rows] == [made.lr(step) for step in range(made.total_steps)]


def test_the_same_words_again_train_nothing(
    finished: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And configuration and outcome are there to read, also when their file is made anew."""
    folder, error = tmp_path / "run", finished[1]
    shutil.copytree(finished[0], folder, symlinks=True)
    before = curves(folder)
    made = recipe(folder, *WHOLE)
    for again in (False, True):
        if again:
            assert train(made) == error
            assert f"run folder {folder}" in capsys.readouterr().out
        assert curves(folder) == before
        read = texts(folder)
        assert {"    workers: 16", "    seed: 0"} <= set(read["config"].splitlines())
        assert read["outcome"].startswith(f"{TOP1.format_labelled(error)} (median of the last ")
        assert "published" not in read["outcome"]  # which is of other data


def test_a_checkpoint_is_evaluated_to_the_error_it_was_saved_with(
    finished: tuple[Path, float],
) -> None:
    file = finished[0] / "checkpoint.pt"
    last = [row for row in curves(finished[0]) if row["kind"] == "epoch"][-1]
    found = evaluate_path(file, ["val_batch=7"])
    rates = found["val"].with_prefix("val")
    assert rates == pytest.approx({name: last[name] for name in rates}, rel=1e-6)
    assert found["val"].counts["images"] == 355
    # How it was loaded is no part of it, and a group's word chooses as on the training's line.
    assert evaluate_path(file, ["val_batch=7", "inputs=memory"]) == found
    with pytest.raises(UsageError, match="would change the run"):
        evaluate_path(file, ["inputs=synthetic"])


FEW = ["inputs=synthetic", "data.train_examples=48", "workers=4", "worker_batch=4"]
FEW += ["data.val_examples=20"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["optim=adamw", "schedule.reference_lr=0.001", *FEW], marks=pytest.mark.slow),
        ["averaging=last", "averaging.epochs=2", "tail=keep", *FEW, "data.train_examples=56"],
        ["strategy=diloco", "strategy.local_steps=3", *FEW],
        pytest.param(["strategy=async", "cluster.spread=0.5", *FEW], marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_a_run_goes_on_beyond_its_end_bit_by_bit(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As if it had had all epochs from the start, with a drop that the shorter run did not have."""
    on, whole = tmp_path / "on", tmp_path / "whole"
    train(recipe(on, *words, "epochs=2", "schedule.milestones=[]"))
    capsys.readouterr()
    error = train(recipe(on, *words))
    printed = capsys.readouterr().out
    assert "warning: the run had epochs=2 and is extended to epochs=4\n" in printed
    assert "resumes after step" in printed
    assert train(recipe(whole, *words)) == error
    assert [row for row in curves(on) if row["kind"] != "warning"] == curves(whole)
    ours, theirs = newest_checkpoint(on), newest_checkpoint(whole)
    assert distance(ours, theirs) == 0
    assert vars(ours).items() >= {each: vars(theirs)[each] for each in SAVED}.items()
    assert read_run(on).state == "finished"
    train(recipe(on, *words))
    assert "warning" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_curves_of_runs_of_any_batch_size_overlay(tmp_path: Path) -> None:
    """Against steps, one would be four times as long as the other."""
    for workers, batch, steps in ((2, 32, 46), (8, 128, 12)):
        short = ["epochs=2", "schedule.milestones=[1.5]", "tail=keep"]
        made = recipe(tmp_path / str(workers), f"workers={workers}", *short)
        train(made)
        drawn = points(tmp_path / str(workers))
        assert [at for at, _ in drawn["1_result/val_top1_error"]] == [1, 2]
        seen = [step // steps * 1442 + step % steps * batch for step in range(2, 2 * steps + 1, 2)]
        assert [at for at, _ in drawn["2_training_by_examples/loss"]] == seen
        assert seen[-1] == 2 * 1442
        lr = [made.lr(step - 1) for step in range(2, 2 * steps + 1, 2)]
        assert [value for _, value in drawn["4_more_by_examples/lr"]] == pytest.approx(lr)


@pytest.mark.slow
def test_a_diverged_run_stops_with_its_own_code_and_keeps_its_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(tmp_path / "run", "epochs=2", "schedule.milestones=[1.5]"))
    saved = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    words = ["+recipe=digits", *SHORT, "epochs=3", "schedule.milestones=[1.5]"]

    # The same run, but from its third epoch on the images are not numbers.
    monkeypatch.setattr(
        pixels.Normalise, "__call__", lambda self, images: images.float() * torch.nan
    )
    fields = checkpoint.decode_checkpoint(saved, "checkpoint")
    longer = compose_recipe(*words, f"run_dir={tmp_path / 'longer'}")
    (tmp_path / "longer").mkdir()
    taken_over = replace(fields, fingerprint=longer.fingerprint)
    checkpoint.write(taken_over, tmp_path / "longer")
    before = (tmp_path / "longer" / "checkpoint.pt").read_bytes()

    assert main([*words, f"run_dir={tmp_path / 'longer'}"]) == 3
    assert "step 10 is not finite" in capsys.readouterr().err
    assert "step 10 is not finite" in texts(tmp_path / "longer")["outcome"]
    assert (tmp_path / "longer" / "checkpoint.pt").read_bytes() == before


@pytest.mark.slow
def test_rehearsal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Six steps of the paper's run with its own lr, and every replacement is printed."""
    words = ["rehearse=true", f"run_dir={tmp_path}", "log_steps=1", "workers_per_pass=64"]
    assert main(["+recipe=bs256", *words]) == 0
    original = compose_recipe("+recipe=bs256")
    per_epoch = original.steps_per_epoch
    steps = [0, 1, round(2.5 * per_epoch), 5 * per_epoch, 30 * per_epoch - 1, 30 * per_epoch]
    rows = [row for row in curves(tmp_path) if row["kind"] == "train"]
    assert [(row["step"] - 1, row["lr"]) for row in rows] == [
        (step, pytest.approx(original.lr(step), rel=1e-12)) for step in steps
    ]
    printed = capsys.readouterr().out
    assert "dry run done: steps, evaluations and checkpoints" in printed
    for replaced in (
        "worker_batch 32 -> 2",
        "model resnet50 -> small_resnet",
        "data imagenet -> synthetic",
    ):
        assert replaced in printed


@pytest.mark.slow
def test_a_checkpoint_of_resnet50_is_torchvisions(tmp_path: Path) -> None:
    """Its model loads by plain keys, all of them, and answers the same."""
    made = compose_recipe("+recipe=bs64", "inputs=synthetic")
    checkpoint.write(Learner(made, SingleComm(), torch.device("cpu")).checkpoint(), tmp_path)
    saved = weights(tmp_path)
    theirs = models.resnet50()
    theirs.load_state_dict(saved, strict=True)
    ours = make_model("resnet50", classes=1000, channels=3, last_gamma=0.0, seed=1)
    ours.load_state_dict(saved, strict=True)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))


@pytest.mark.slow
def test_bfloat16_and_channels_last_train_alike(tmp_path: Path) -> None:
    """Autocast is for the forward pass; parameters and gradients stay float32."""
    train(recipe(tmp_path / "run", "precision=bfloat16", "channels_last=true"))
    losses = [row["train_loss"] for row in curves(tmp_path / "run") if row["kind"] == "epoch"]
    assert losses[-1] < 0.8 * losses[0]
    saved = weights(tmp_path / "run")
    assert saved["fc.weight"].dtype == torch.float32
    assert saved["layer1.0.conv1.weight"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("minutes", "expected"), [(1e-9, [2, 4, 5, 7, 9, 10]), (10, [5, 10])])
def test_a_kill_costs_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, expected: list[int]
) -> None:
    """Within an epoch too, but not again after the next step; a shorter run at its ends alone."""
    saved: list[int] = []
    before = CheckpointSaver.save

    def noted(self: CheckpointSaver, snapshot: Checkpoint, *, milestone: bool = False) -> None:
        saved.append(snapshot.step)
        before(self, snapshot, milestone=milestone)

    monkeypatch.setattr(CheckpointSaver, "save", noted)
    words = ["epochs=2", "schedule.milestones=[1.5]", f"checkpoint_minutes={minutes}"]
    train(recipe(tmp_path, *words, *FEW, "data.train_examples=80"))
    assert saved == expected


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
    assert same(tmp_path / "gpu", tmp_path / "cpu", atol=1e-8)
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
    launched, replayed = weights(tmp_path / "launched"), weights(tmp_path / "replayed")
    assert all(torch.allclose(launched[key], replayed[key], atol=1e-5) for key in launched)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("loader", ["synthetic", "memory"])
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["precision=bfloat16", "channels_last=true"],
        ["precision=float16", "optim=lars", "optim.clip_norm=1"],
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
            train_step(learner, task, inputs.train(task.micro_batches))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    learner.strategy.guard.raise_if_nonfinite()
