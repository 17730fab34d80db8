"""Tests of commands other than training on the stand-in of an accelerator."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.accelerator import available, count_operations
from helpers.device_runs import (
    AXES,
    STRATEGIES,
    VARIANTS,
    base,
    differences,
    differing_paths,
    run,
    with_fields,
)
from helpers.joined_run import NaNLossImages, step_with_signal
from helpers.steps import copied

from lsgd import profile, train
from lsgd.autotune import NOT_POSSIBLE, StepTimer
from lsgd.check.__main__ import main as check
from lsgd.comm.single import SingleComm
from lsgd.doctor.probe import all_reduce
from lsgd.errors import DivergedError, PreemptedError, UsageError
from lsgd.evaluate import evaluate_path
from lsgd.export.__main__ import main as export
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe.fields import AUTO
from lsgd.run import checkpoint
from lsgd.run.saver import _on_host
from lsgd.step import train_step

# A run of each strategy is compared in test_matrix.py.
pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
EMA = AXES["averaging"]["ema"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run on the CPU."""
    folder = tmp_path_factory.mktemp("finished") / "cpu"
    run(with_fields(base("images"), EMA), folder, "cpu")
    return folder


@pytest.fixture
def device() -> Iterator[torch.device]:
    with available() as made:
        yield made


def test_an_evaluation(finished: Path) -> None:
    expected = evaluate_path(finished, ["device=cpu"])
    with available():
        assert evaluate_path(finished, ["device=auto"]) == expected


@pytest.mark.export
def test_an_export(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    words = [str(finished), "--to", "safetensors", "--out"]
    assert export([*words, str(tmp_path / "cpu"), "device=cpu"]) == 0
    with available(), count_operations() as counts:
        assert export([*words, str(tmp_path / "device"), "device=auto"]) == 0
    assert counts.operators
    one, other = (load_file(tmp_path / name) for name in ("cpu", "device"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("device")
def test_a_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["+recipe=digits"]) == 0, capsys.readouterr()


def test_a_profile(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """By the device's own events: of two steps the second is timed."""
    monkeypatch.setattr(profile, "WARMUP", 1)
    monkeypatch.setattr(profile, "MEASURED", 1)
    monkeypatch.setattr(profile, "TRACED", 1)
    with available():
        run(replace(with_fields(base("images"), EMA), profile=True), tmp_path / "run", "auto")
    assert not differences(finished, tmp_path / "run")
    (report,) = (tmp_path / "run").glob("profile/*/README.md")
    assert "| communication" in report.read_text()
    assert list(report.parent.glob("trace-0.json.gz"))


def test_the_fastest_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Recipe, "is_short", False)
    monkeypatch.setattr("lsgd.autotune.MIN_SECONDS", 0)
    monkeypatch.setattr("lsgd.autotune.MAX_SHARE", 100)
    auto = replace(base("images"), workers_per_pass=AUTO)
    with available():
        run(auto, tmp_path / "device", "auto")
    saved = checkpoint.decode_checkpoint(checkpoint.read(tmp_path / "device/checkpoint.pt"), "")
    workers = saved.recipe["workers_per_pass"]
    assert workers in (1, 2, 4)
    run(replace(auto, workers_per_pass=workers), tmp_path / "cpu", "cpu")
    assert not differences(tmp_path / "cpu", tmp_path / "device")


def compare_passes(device: torch.device) -> float | None:
    """Compare a micro-batch of all 4 workers with one of each."""
    one = replace(base("images"), workers_per_pass=1)
    timer = StepTimer(one, 4, device, 1e9)
    timer.probe(1)
    return timer.compare(one, replace(one, workers_per_pass=4))


def test_a_pass_that_does_not_fit_is_not_taken() -> None:
    with available(memory=2**30) as device:
        module = torch.get_device_module(device)
        module.reset_peak_memory_stats()
        assert compare_passes(device) != NOT_POSSIBLE
        peak = module.max_memory_allocated()
    with available(memory=peak) as device:
        assert compare_passes(device) == NOT_POSSIBLE


def steps_of(made: Recipe, devices: list[torch.device]) -> Any:
    """Return the checkpoint after the steps of a run, each made on the next of these devices."""
    saved = None
    for step, device in enumerate(devices):
        learner = Learner(made, SingleComm(), device)
        if saved is not None:
            learner.restore(saved)
        epoch, _ = made.locate_step(step)
        inputs = learner.workload.inputs()
        for task in learner.strategy.tasks(epoch, [step]):
            train_step(learner, task, inputs.train(task.micro_batches))
        if made.locate_step(step + 1)[0] != epoch:
            learner.end_epoch(epoch, {})
        on_host, wait = _on_host(learner.checkpoint())
        wait()
        saved = copied(on_host)
    return saved


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_goes_on_on_the_other_device(device: torch.device, strategy: str) -> None:
    made = with_fields(base("images"), STRATEGIES[strategy] | AXES["optim"]["adam"])
    steps = min(made.total_steps, 5)
    expected = steps_of(made, [CPU] * steps)
    found = steps_of(made, [(CPU, device)[step % 2] for step in range(steps)])
    assert not list(differing_paths(vars(expected), vars(found)))


def test_a_run_that_is_told_to_leave_goes_on(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_fields(base("images"), EMA)
    monkeypatch.setattr(train, "train_step", step_with_signal(1, signal.SIGTERM))
    with available(), pytest.raises(PreemptedError):
        run(made, tmp_path / "run", "auto")
    monkeypatch.undo()
    run(made, tmp_path / "run", "cpu")
    assert not differences(finished, tmp_path / "run")


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=[pytest.mark.soak] * (name in VARIANTS)) for name in STRATEGIES],
)
def test_a_loss_that_is_no_number_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """At the step at which it ends on the CPU, and nothing that is not finite is saved."""
    made, said = with_fields(base("images"), STRATEGIES[strategy]), []
    monkeypatch.setattr("lsgd.workloads.images.ImageClassification", NaNLossImages)
    for name, place in (("cpu", "cpu"), ("device", "auto")):
        with available(), pytest.raises(DivergedError) as error:
            run(made, tmp_path / name, place)
        said.append(str(error.value))
        saved = checkpoint.decode_checkpoint(checkpoint.read(tmp_path / name / "checkpoint.pt"), "")
        assert all(value.isfinite().all() for value in saved.model.values())
    assert said[0] == said[1]


def test_a_device_without_float64_rounds_sums_of_losses_alone(
    finished: Path, tmp_path: Path
) -> None:
    """As the GPU of a Mac; what asks for float64 by name is refused."""
    made = with_fields(base("images"), EMA)
    with available(unsupported=frozenset({torch.float64})):
        run(made, tmp_path / "run", "auto")
        with pytest.raises(UsageError, match="precision=float64, and Stand-in has no such numbers"):
            run(replace(made, precision="float64"), tmp_path / "refused", "auto")
    assert all("loss" in place for place in differences(finished, tmp_path / "run"))


@pytest.mark.usefixtures("device")
def test_the_sums_of_doctor() -> None:
    with count_operations() as counts:
        (facts,) = all_reduce("single", "auto")
    assert facts["wrong"] == []
    assert counts.waits["synchronize"] == 5
