"""profile=true on one process; tests/distributed has those that wait for each other."""

import gzip
import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.composed import compose_recipe

from lsgd.comm.single import SingleComm
from lsgd.inputs import Inputs, open_inputs
from lsgd.learner import Learner
from lsgd.profile import WARMUP, StepProfile, Trace, profiling, stragglers
from lsgd.profile.phases import reporting_batches, reporting_phases
from lsgd.profile.stragglers import BETWEEN_STEPS
from lsgd.run.metrics import Log
from lsgd.run.rows import depends_on_hardware, read_rows
from lsgd.step import train_step
from lsgd.train import train

CPU = torch.device("cpu")
WORDS = [
    "+recipe=digits", "workers=4", "epochs=2", "schedule.milestones=[]", "schedule.warmup_epochs=1",
    "log_steps=1",
]  # fmt: skip
PHASES = {"data wait", "forward", "backward", "communication", "optimizer", "between steps"}


def make_steps(learner: Learner, inputs: Inputs, count: int) -> None:
    """The first steps of the first epoch."""
    tasks = list(learner.strategy.tasks(0, list(range(count))))
    batches = inputs.train(each for task in tasks for each in task.micro_batches)
    for task in tasks:
        train_step(learner, task, batches)


def run(folder: Path, *words: str) -> list[dict]:
    """The rows of a run without what is different each time it is made."""
    train(compose_recipe(*WORDS, f"run_dir={folder}", *words))
    rows = read_rows(folder / "metrics.jsonl")
    return [
        {key: row[key] for key in row if key != "time" and not depends_on_hardware(key)}
        for row in rows
    ]


@pytest.mark.slow
def test_a_profiled_run_is_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    profiled, plain = run(tmp_path / "p", "profile=true"), run(tmp_path / "q")
    assert profiled == plain
    ours, theirs = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in "pq"
    )
    assert all(torch.equal(ours["model"][key], theirs["model"][key]) for key in theirs["model"])
    assert not (tmp_path / "q" / "profile").exists()

    (folder,) = (tmp_path / "p" / "profile").iterdir()
    said = capsys.readouterr().out
    assert f"after 5 steps 20 are timed and then 2 traced, into {folder}" in said
    assert "steps 6 to 25: one process, which waits for no other\n| ms per step" in said
    readme = (folder / "README.md").read_text()
    assert "Steps 6 to 25;" in readme
    times = {
        cells[1].strip(): float(cells[3])
        for cells in (line.split("|") for line in readme.splitlines())
        if len(cells) == 7 and cells[1].strip() in PHASES
    }
    assert times.keys() == PHASES
    assert times["forward"] > 0
    assert times["backward"] > 0
    # The two steps that are traced.
    (path,) = folder.glob("trace-0.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    marks = [each["name"] for each in events if each.get("cat") == "user_annotation"]
    for phase in PHASES - {"between steps", "optimizer"}:
        assert marks.count(phase) == 2
    assert any("conv" in each["name"] for each in events)
    assert not list(path.parent.glob(".*"))


@pytest.mark.slow
def test_a_run_too_short_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """In an epoch of 22 steps some are timed; in 4 none is."""
    run(tmp_path / "some", "profile=true", "epochs=1")
    assert "steps 6 to 22: one process" in capsys.readouterr().out
    (folder,) = (tmp_path / "some" / "profile").iterdir()
    assert [path.name for path in folder.iterdir()] == ["README.md"]
    rows = run(tmp_path / "none", "profile=true", "epochs=1", "workers=20")
    said = "profile=true times steps from the 6th on, and there were only 4"
    assert [row["text"] for row in rows if row["kind"] == "warning"] == [said]
    assert not (tmp_path / "none" / "profile").exists()


def test_a_resumed_run_is_profiled_beside_the_first(tmp_path: Path) -> None:
    made = compose_recipe(*WORDS, "profile=true")
    learner, inputs = Learner(made, SingleComm(), CPU), open_inputs(made, CPU)

    def profile() -> None:
        with profiling(learner, inputs, tmp_path, Log()):
            make_steps(learner, inputs, 7)

    profile()
    (first,) = tmp_path.glob("profile/*/README.md")
    os.rename(first.parent, first.parent.with_name("20260101-000000"))
    profile()
    assert len(list(tmp_path.glob("profile/*/README.md"))) == 2


def wrapped(learner: Learner, inputs: Inputs) -> set[str]:
    """The methods that an instance has of its own, and not by its class."""
    timed = learner.strategy.phases()
    subjects = [inputs, *(subject for _, subject, _ in timed)]
    own = {name: value for subject in subjects for name, value in vars(subject).items()}
    methods = {method for _, _, method in timed} | {"train"}
    return own.keys() & methods


def test_nothing_is_wrapped_unless_it_is_profiled(tmp_path: Path) -> None:
    """Neither with profile=false, nor after a profile, nor after one that an error has ended."""
    made = compose_recipe(*WORDS)
    learner, inputs = Learner(made, SingleComm(), CPU), open_inputs(made, CPU)
    with profiling(learner, inputs, tmp_path, Log()):
        assert not wrapped(learner, inputs)
    learner.recipe = replace(made, profile=True)
    methods = {"train", "start", "backward", "finish", "_update"}
    with suppress(KeyError), profiling(learner, inputs, tmp_path, Log()):
        assert wrapped(learner, inputs) == methods
        raise KeyError
    assert not wrapped(learner, inputs)


def test_each_phase_is_told_of_as_it_begins() -> None:
    """In a step of two passes; the names are those that the table has."""
    made = compose_recipe(*WORDS, "workers_per_pass=2")
    learner, inputs = Learner(made, SingleComm(), CPU), open_inputs(made, CPU)
    phases: list[str] = []
    with (
        reporting_phases(learner.strategy.phases(), phases.append),
        reporting_batches(inputs, phases.append),
    ):
        make_steps(learner, inputs, 1)
    one_pass = ["data wait", "forward", "backward"]
    assert phases == [
        "optimizer",
        *one_pass,
        *one_pass,
        "communication",
        "optimizer",
        BETWEEN_STEPS,
    ]
    assert {*phases} == {*stragglers.PHASES, BETWEEN_STEPS} == PHASES


def test_batches_between_steps_are_of_no_step(tmp_path: Path) -> None:
    """Such as those on which an evaluation measures BN's statistics."""
    learner = Learner(compose_recipe(*WORDS), SingleComm(), CPU)
    profile = StepProfile(learner, tmp_path, Log())
    for _ in range(WARMUP):
        profile("optimizer")
        profile(BETWEEN_STEPS)
    profile.of_batch("data wait")
    profile.of_batch("forward")
    profile("optimizer")
    profile.of_batch("data wait")
    assert [phase for phase, _ in profile.begun] == [BETWEEN_STEPS, "optimizer", "data wait"]


@pytest.mark.parametrize("name", ["async", "local", "hogwild"])
def test_phases_of_other_strategies_have_these_names_and_are_methods(name: str) -> None:
    plain = ["optim.momentum=0", "optim.nesterov=false", "workers_per_pass=1", "workers=1"]
    made = compose_recipe(*WORDS, f"strategy={name}", *plain)
    for phase, subject, method in Learner(made, SingleComm(), CPU).strategy.phases():
        assert phase in PHASES
        assert callable(getattr(subject, method))


@pytest.mark.gpu
def test_on_a_gpu_its_own_events_are_the_clock(tmp_path: Path) -> None:
    run(tmp_path, "profile=true", "device=cuda")
    (folder,) = (tmp_path / "profile").iterdir()
    lines = (folder / "README.md").read_text().splitlines()
    (forward,) = [line.split("|") for line in lines if line.startswith("| forward")]
    assert float(forward[3]) > 0
    assert (folder / "trace-0.json.gz").exists()


class Said(Log):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, step: int, text: str) -> None:
        self.warnings.append(text)


@pytest.mark.slow
def test_a_full_disk_costs_the_trace_and_not_the_run(small_disk: Path) -> None:
    log = Said()
    trace = Trace(small_disk / "trace-0.json.gz", torch.device("cpu"), log)
    (small_disk / "ballast").write_bytes(bytes(2**22 - 8192))
    trace.start()
    for _ in range(3):
        for _ in range(2000):
            torch.ones(3) + torch.rand(3)
        trace.step()
    trace.close()
    assert log.warnings == [f"no space left for the profile in {small_disk}; training continues"]
    assert not (small_disk / "trace-0.json.gz").exists()
