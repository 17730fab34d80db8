"""hardware=auto chooses execution fields before training, on all processes alike."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import open_once
from helpers.composed import compose_recipe
from helpers.folders import DATA, make_folder, open_folder_inputs
from helpers.threaded import run_on_threads

import lsgd.recipe
from lsgd import autotune, config, recipe_parser
from lsgd.autotune import StepTimer, resolve_auto_fields
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.inputs import Inputs
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.recipe.fields import AUTO, TIMED
from lsgd.rules.sampler import MicroBatch
from lsgd.run.rows import read_rows
from lsgd.strategy import StepTask
from lsgd.train import train

CPU = torch.device("cpu")
SMALL = ["workers=4", "worker_batch=4", "schedule.reference_batch=16", "inputs=synthetic"]
SMALL += ["data.train_examples=82", "data.val_examples=20"]
"""Epochs of 5 steps of 4 workers."""
LONG = ["+recipe=bs256", "hardware=auto"]
"""90 epochs of 1.28 million images, with 8 workers of 32 images, whose defaults nobody has set."""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache: each test times anew, and none writes into the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def recipe(*words: str) -> Recipe:
    short = ["epochs=2", "schedule.milestones=[1.5]", "schedule.warmup_epochs=1", "log_steps=2"]
    return compose_recipe("+recipe=digits", "precision=float64", *short, *words)


def saved(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def assert_same_run(one: Path, other: Path) -> None:
    """Up to the order of sums: to 1e-10 in float64."""
    ours, theirs = saved(one)["model"], saved(other)["model"]
    assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-10) for key in theirs)


def untimed(*_: object) -> float:
    pytest.fail("steps were timed")


class Machine:
    """A machine with a clock of its own, on which a step takes what these factors say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, example: float = 0.001) -> None:
        self.now, self.threads, self.example, self.busy = 0.0, 1, example, 1.0
        self.last: dict[Any, float] = {}
        self.workers: dict[int, float] = {}
        self.by_threads: dict[int, float] = {}
        self.compiled = 1.0
        self.steps: list[tuple[Any, ...]] = []
        clock = SimpleNamespace(
            perf_counter=lambda: self.now * self.busy,
            thread_time=lambda: self.now,
            process_time=lambda: self.now,
        )
        monkeypatch.setattr(autotune, "time", clock)
        monkeypatch.setattr(autotune, "_step_seconds", self._step)
        monkeypatch.setattr(autotune, "_throwaway_learner", self._learner)
        monkeypatch.setattr(autotune, "_most_threads", lambda: 4)
        monkeypatch.setattr(autotune, "cpu_threads", lambda made, _: made.threads or 4)
        monkeypatch.setattr(torch, "set_num_threads", self._set_threads)

    def _set_threads(self, number: int) -> None:
        self.threads = number

    def _learner(self, made: Recipe, device: torch.device) -> Any:
        return SimpleNamespace(recipe=made, workload=SimpleNamespace(inputs=lambda: None))

    def _step(
        self, learner: Learner, task: StepTask, _: Inputs, clock: Callable[[], float]
    ) -> float:
        made, each = learner.recipe, [len(micro.workers) for micro in task.micro_batches]
        examples = sum(len(micro.examples) for micro in task.micro_batches)
        factor = self.last.get(made.channels_last, 1.0) * self.by_threads.get(self.threads, 1.0)
        factor *= self.workers.get(max(each), 1.0) * (self.compiled if made.compile else 1.0)
        self.steps.append((made.channels_last, max(each), self.threads, examples))
        self.now += self.example * examples * factor
        return self.example * examples * factor


def choose(*words: str, comm: Any = None) -> tuple[dict[str, Any], list[str]]:
    made = compose_recipe(*words)
    tuned, lines = resolve_auto_fields(made, {}, comm or SingleComm(), CPU)
    assert tuned.fingerprint == made.fingerprint
    return {name: getattr(tuned, name) for name in TIMED}, lines


DEFAULTS = {"channels_last": False, "workers_per_pass": 1, "threads": None, "compile": False}


# --- Which runs and which fields -------------------------------------------------------------


def by_command(*words: str, program: str = "lsgd.train") -> dict[str, Any]:
    made = recipe_parser.parse_recipe(words, program=program, about="")
    return {name: getattr(made, name) for name in TIMED}


@pytest.mark.slow
def test_training_times_what_nobody_has_given() -> None:
    """Neither a word of the command line nor one of the recipe changes, nor another command."""
    assert by_command("+recipe=bs256") == dict.fromkeys(TIMED, AUTO)
    for words, given in (
        ("threads=2 channels_last=false", {"threads": 2, "channels_last": False}),
        ("workers_per_pass=1", {"workers_per_pass": 1}),
        ("recipe=fashion_bs64", {"workers_per_pass": 4}),
        ("compile=true", {"compile": True, "channels_last": False, "workers_per_pass": 1}),
    ):
        found = by_command(*(["+recipe=bs256"] if "recipe" not in words else []), *words.split())
        assert found == dict.fromkeys(TIMED, AUTO) | given
    for words in (
        "hardware=none",
        "strategy=async",
        "epochs=90 dry_run=true",
        "data.train_examples=512",
    ):
        assert by_command("+recipe=bs256", *words.split()) == DEFAULTS
    assert by_command("+recipe=digits") == DEFAULTS | {"workers_per_pass": 16}
    assert by_command("+recipe=bs256", program="lsgd.check") == DEFAULTS
    assert by_command("+recipe=bs256", program="lsgd.autotune") == dict.fromkeys(TIMED, AUTO)
    made = config.load_recipe(["+recipe=bs256"])
    assert replace(made, **dict.fromkeys(TIMED, AUTO)).fingerprint == made.fingerprint


@pytest.mark.parametrize(
    "words", [["+recipe=digits"], ["+recipe=bs256", "epochs=90", "rehearse=true"]]
)
def test_nothing_is_timed_before_a_short_run(
    words: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "_step_seconds", untimed)
    values, lines = choose(*words, "hardware=auto")
    assert values == DEFAULTS
    assert lines[0].endswith("the defaults, as the run leaves no time to compare others")
    assert not list(cache.iterdir())


def test_a_run_of_seconds_keeps_the_defaults_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a second start of it, on a machine that is slower by then, might have other bits.

    The model that was timed is released too, whose memory on a GPU the run may need.
    """
    fast = Machine(monkeypatch, example=1e-7)  # 2 % of 12 s
    fast.last[True] = 0.5
    closed: list[StepTimer] = []
    monkeypatch.setattr(StepTimer, "close", lambda self: closed.append(self))
    assert choose(*LONG)[0] == DEFAULTS
    assert len(fast.steps) == 4
    assert len(closed) == 1
    fast.example = 0.001
    assert choose(*LONG)[0] == DEFAULTS
    assert choose(*LONG, "epochs=100")[0] == DEFAULTS | {"channels_last": True}
    assert choose(*LONG)[0] == DEFAULTS
    assert autotune.main(["+recipe=bs256"]) == 0  # whose choice is asked for
    assert choose(*LONG)[0] == DEFAULTS | {"channels_last": True}


def test_without_a_comparison_nothing_is_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer run has the time for some; the short one keeps the defaults."""
    machine = Machine(monkeypatch, 0.1)
    machine.last[True] = 0.5
    words = ["workers=1", "worker_batch=2", "schedule.reference_batch=2", "schedule.warmup=none"]
    words += ["data.train_examples=700", "schedule.milestones=[]"]
    for epochs, is_last in ((1, False), (100, True), (1, False)):
        assert choose(*LONG, *words, f"epochs={epochs}")[0]["channels_last"] is is_last
    words += ["channels_last=false", "threads=2"]
    for epochs, why in ((2, ": no other value is possible"), (100, ".json")):
        assert choose(*LONG, *words, f"epochs={epochs}")[1][0].endswith(why)


@pytest.mark.slow
def test_nothing_is_timed_where_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each worker pushes, of texts a memory format, and of trees a compiled network."""
    for words, fields in (
        (["+recipe=bs256", "strategy=async"], {"channels_last", "threads", "compile"}),
        (["+recipe=ptb_small"], {"workers_per_pass", "threads", "compile"}),
        (["+recipe=sst_treelstm"], {"workers_per_pass", "threads"}),
    ):
        machine = Machine(monkeypatch, example=0.1)
        machine.last[True], machine.compiled = 0.1, 0.1
        line = choose(*words, "hardware=auto")[1][0]
        assert {word.partition("=")[0] for word in line.partition(",")[0].split()} == fields
    monkeypatch.setattr(autotune, "_step_seconds", untimed)
    made = compose_recipe("+recipe=bs256", "strategy=async", "workers_per_pass=auto")
    tuned, lines = resolve_auto_fields(made, {}, SingleComm(), CPU)
    assert (tuned.workers_per_pass, lines) == (1, [])
    whole = compose_recipe("+recipe=bs256", "workers_per_pass=3")
    started_with = {"workers_per_pass": 8, "channels_last": True}
    assert resolve_auto_fields(whole, started_with, SingleComm(), CPU) == (whole, [])


# --- The choice ------------------------------------------------------------------------------


def test_the_fastest_of_each_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one line has the ratios; it is said at once that steps are timed, and for how long."""
    machine = Machine(monkeypatch)
    machine.last[True], machine.by_threads = 0.8, {1: 1.5, 2: 0.5}
    machine.workers = {2: 0.9, 4: 0.85, 8: 1.1}
    values, (line,) = choose(*LONG)
    assert values == {
        "channels_last": True, "workers_per_pass": 4, "threads": 2, "compile": False,
    }  # fmt: skip
    assert line.startswith(
        "channels_last=true workers_per_pass=4 threads=2 compile=false, chosen in "
    )
    assert line.endswith(
        "by the times of steps: channels_last=true 0.80 of false's, workers_per_pass=2 0.90 of 1's,"
        " workers_per_pass=4 0.94 of 2's, workers_per_pass=8 1.29 of 4's, threads=1 1.50 of null's,"
        " threads=2 0.50 of null's, together 0.34 of the defaults'"
    )
    assert capsys.readouterr().out == (
        "timing steps for at most 15 s (30 on a busy machine), to choose channels_last, "
        "workers_per_pass, threads, compile; hardware=none times none\n"
    )


def test_a_default_is_not_left_for_the_error_of_a_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.last[True], machine.workers, machine.by_threads = 0.98, {2: 0.98}, {1: 0.98, 2: 1.3}
    assert choose(*LONG)[0] == DEFAULTS


def test_settings_that_are_slower_together_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where one of the comparisons was disturbed."""
    ratios = iter([0.9, 0.9, 1.1, 1.0, 1.0, 1.01])
    Machine(monkeypatch)
    monkeypatch.setattr(StepTimer, "compare", lambda *_: next(ratios))
    assert choose(*LONG)[0] == DEFAULTS


@pytest.mark.parametrize(
    ("example", "busy", "fields"),
    [(0.001, 1, 4), (0.3, 1, 2), (0.3, 10, 0), (0.02, 2, 2), (3, 1, 0)],
    ids=["small", "ResNet-50 at 224 px", "on a busy machine", "a bit busy", "enormous"],
)
def test_the_time_is_limited(
    monkeypatch: pytest.MonkeyPatch, example: float, busy: float, fields: int
) -> None:
    """On a busy machine to twice as long; only what could be compared is chosen."""
    machine = Machine(monkeypatch, example)
    machine.busy = busy
    machine.last[True], machine.by_threads, machine.workers = 0.5, {1: 0.5, 2: 0.5}, {2: 0.5}
    values, _ = choose(*LONG)
    assert sum(values[name] != DEFAULTS[name] for name in TIMED) == min(fields, 3)
    assert machine.now <= 15
    assert machine.now * busy <= 30 or example * busy >= 3  # the first step alone takes longer


def test_two_percent_of_the_run_are_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 0.3)
    machine.last[True] = 0.5
    values, _ = choose(
        *LONG,
        "epochs=1",
        "data.train_examples=51200",
        "schedule.milestones=[]",
        "schedule.warmup=none",
        "strategy=allreduce",
        "schedule.reference_batch=256",
    )
    assert values["channels_last"]
    run = 51200 * 0.3
    assert machine.now <= min(15, 0.02 * run)
    few = Machine(monkeypatch, 0.3)
    few.last[True] = 0.5
    few_steps = [
        "data.train_examples=512",
        "worker_batch=2",
        "workers=1",
        "schedule.reference_batch=2",
    ]
    choose(*LONG, "epochs=1", *few_steps, "schedule.milestones=[]", "schedule.warmup=none")
    assert few.now <= 0.02 * 512 * 0.3 + 4 * 2 * 0.3  # the steps that estimate the run


def test_both_settings_are_timed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns, with the same examples; the median leaves out one that was disturbed."""
    machine = Machine(monkeypatch)
    made = compose_recipe("+recipe=bs256", "workers_per_pass=4", "threads=4")
    timer = StepTimer(made, 8, CPU, 15.0)
    timer.per_example = 0.1
    values = iter([1.0, 1.0, 9.0, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0])

    def seconds(learner: Learner, task: StepTask, *_: object) -> float:
        machine._step(learner, task, None, None)  # type: ignore[arg-type]
        return next(values, 1.0)

    monkeypatch.setattr(autotune, "_step_seconds", seconds)
    assert timer.compare(made, replace(made, channels_last=True)) == pytest.approx(0.5)
    assert machine.steps == [(False, 4, 4, 8), (True, 4, 4, 8)] + 4 * [
        (True, 4, 4, 8), (False, 4, 4, 8),
    ]  # fmt: skip
    assert timer.compare(made, replace(made, workers_per_pass=16)) == autotune.NOT_POSSIBLE
    few = StepTimer(made, 3, CPU, 15.0)  # with fewer workers than a micro-batch may have
    few.per_example = 0.1
    assert few.compare(made, replace(made, channels_last=True)) == 1.0
    assert machine.steps[-1][:2] == (False, 3)
    assert StepTimer(made, 0, CPU, 15.0).compare(made, made) is None


def test_a_setting_that_does_not_fit_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.workers = {2: 0.9, 4: 0.8, 8: 0.7}
    step = machine._step

    def full(learner: Learner, task: StepTask, *rest: Any) -> float:
        if len(task.micro_batches[0].workers) >= 4:
            raise torch.OutOfMemoryError("planted")
        return step(learner, task, *rest)

    monkeypatch.setattr(autotune, "_step_seconds", full)
    assert choose(*LONG)[0]["workers_per_pass"] == 2
    monkeypatch.setattr(autotune, "memory_limit", lambda: 1000000)
    assert choose(*LONG, "seed=1", "label_smoothing=0.1")[0]["workers_per_pass"] == 1


def test_a_noise_scale_gets_steps_of_two_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of all workers would be the fastest, and leave its columns out without a word."""
    machine = Machine(monkeypatch)
    machine.workers = {2: 0.9, 4: 0.8, 8: 0.7}
    assert choose(*LONG, "noise_scale=true")[0]["workers_per_pass"] == 4
    assert choose(*LONG)[0]["workers_per_pass"] == 8
    made = compose_recipe(*LONG, "noise_scale=true")
    kept, _ = resolve_auto_fields(made, {"workers_per_pass": 4}, SingleComm(), CPU)
    assert kept.workers_per_pass == 4
    with pytest.raises(UsageError, match="one micro-batch per step; write workers_per_pass=4"):
        resolve_auto_fields(made, {"workers_per_pass": 8}, SingleComm(), CPU)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["workers=7"], ["workers=4", "strategy=sync", "strategy.servers=2"]],
    ids=["7 workers on 3 processes host 3, 2 and 2", "two processes have servers alone"],
)
def test_all_processes_take_one_setting(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """That in which the slowest process is faster, though each has found something else."""
    Machine(monkeypatch)
    turns: dict[int, int] = {}

    def compare(timer: StepTimer, current: Recipe, candidate: Recipe) -> float | None:
        """Two processes gain by channels_last, and each by other threads and micro-batches."""
        if not timer.hosted:
            return None
        turns[id(timer)] = turns.get(id(timer), 0) + 1
        gains = candidate.channels_last and not current.channels_last
        return 0.5 if gains or timer.hosted == 3 else 1.1

    monkeypatch.setattr(StepTimer, "compare", compare)
    made = compose_recipe(*LONG, *words)
    found = run_on_threads(3, lambda comm: resolve_auto_fields(made, {}, comm, CPU))
    values = {tuple(getattr(chosen, name) for name in TIMED) for chosen, _ in found}
    assert values == {(True, 1, None, False)} or "strategy=sync" in words
    assert len(values) == 1
    assert found[0][0].fingerprint == made.fingerprint
    assert found[0][0].strategy == made.strategy


# --- The same choice again -------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_command_makes_the_same_choice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without timing anything, whatever the seed; another network or size is timed."""
    machine = Machine(monkeypatch)
    machine.last[True] = 0.5
    values = DEFAULTS | {"channels_last": True}
    assert choose(*LONG)[0] == values
    monkeypatch.setattr(autotune, "_step_seconds", untimed)
    found, (line,) = choose(
        *LONG, "seed=7", "epochs=100", "data.train_examples=1281166", "data.val_examples=49999",
        "data.mean=[0.5,0.5,0.5]", "data.skip=[a/b.jpg]", f"model.start_sha256={'0' * 64}",
        "model.new_head=true",
    )  # fmt: skip
    assert found == values
    words = "channels_last=true workers_per_pass=1 threads=null compile=false, as timed before: "
    assert line.startswith(f"{words}{cache}/lsgd/autotune/")
    for other in (
        *("worker_batch=4", "model=resnet20", "precision=float64", "workers=8 tail=keep threads=3"),
        "data.image_size=64",
    ):
        with pytest.raises(pytest.fail.Exception, match="steps were timed"):
            choose(*LONG, *other.split())


@pytest.mark.parametrize("order", [("async", "allreduce"), ("allreduce", "async")])
def test_a_choice_is_kept_for_the_fields_that_were_timed(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of an asynchronous strategy push their own gradients, and have one per pass."""
    machine = Machine(monkeypatch)
    machine.workers[2] = 0.5
    words = {
        "async": (*LONG, "strategy=async", "schedule.reference_batch=32"),
        "allreduce": LONG,
    }
    expected = {"async": 1, "allreduce": 2}
    for strategy in (*order, *order):
        values, (line,) = choose(*words[strategy])
        assert values["workers_per_pass"] == expected[strategy]
        assert ("workers_per_pass" in line) == (strategy == "allreduce")
    assert "as timed before" in line


def test_two_jobs_at_once_keep_one_choice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the one that was done first."""
    machine = Machine(monkeypatch)
    machine.last[True] = 0.5
    record = autotune.ChoiceRecord.read
    reads: list[int] = []

    def read(self: Any) -> dict[str, Any]:
        reads.append(1)
        if len(reads) == 1:
            return {}  # the other job writes after this one has looked
        return record(self) or dict(DEFAULTS)

    monkeypatch.setattr(autotune.ChoiceRecord, "read", read)
    assert choose(*LONG)[0] == DEFAULTS


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"fastest": 1}', "other", "text", "field"])
def test_a_damaged_record_is_timed_anew(
    cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    machine = Machine(monkeypatch)
    machine.workers[2] = 0.5
    machine.workers[4] = 0.8
    assert choose(*LONG)[0]["workers_per_pass"] == 2
    (file,) = cache.glob("lsgd/autotune/*.json")
    whole = file.read_text()
    changed = {
        "other": whole.replace('"worker_batch": ', '"worker_batch": 9'),
        "text": whole.replace('"workers_per_pass": 2', '"workers_per_pass": "2"'),
        "field": whole.replace('"workers_per_pass": 2', '"batch_size": 2'),
    }
    file.write_text(changed.get(damage, damage))
    assert file.read_text() != whole
    machine.workers[2] = 1.5
    assert choose(*LONG)[0]["workers_per_pass"] == 1
    monkeypatch.setattr(autotune, "_step_seconds", untimed)
    assert choose(*LONG)[0]["workers_per_pass"] == 1


@pytest.mark.parametrize("home", ["a file", "none"])
def test_without_a_cache_each_run_is_timed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: str
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home directory")

    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file") if home == "a file" else "")
    monkeypatch.setattr(Path, "home", no_home)
    machine = Machine(monkeypatch)
    for factor in (0.5, 1.5):
        machine.last[True] = factor
        assert choose(*LONG)[0]["channels_last"] is (factor < 1)
    assert autotune.main(["+recipe=bs256"]) == 2  # before minutes of timing whose result is lost
    assert "XDG_CACHE_HOME to a folder that can be written" in capsys.readouterr().err


def test_only_the_command_times_a_compiled_network(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For as long as it takes; training then uses what it has found, also instead of its own."""
    machine = Machine(monkeypatch, example=0.3)
    machine.compiled, machine.last[True] = 0.5, 0.8
    assert choose(*LONG)[0] == DEFAULTS | {"channels_last": True}
    assert autotune.main(["+recipe=bs256"]) == 0
    said = capsys.readouterr().out
    assert "compile=true 0.50 of false's" in said
    assert "timing steps, to choose channels_last, workers_per_pass, threads, compile;" in said
    (file,) = cache.glob("lsgd/autotune/*.json")
    assert f"kept in {file}\n" in said
    assert json.loads(file.read_text())["fastest"]["compile"] is True
    assert choose(*LONG)[0] == DEFAULTS | {"channels_last": True, "compile": True}


def test_without_a_compiler_the_other_fields_are_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what torch says about it is on the same line; other errors of a step are errors."""
    machine = Machine(monkeypatch)
    machine.last[True] = 0.5
    step, fails = machine._step, ["compile"]

    def failing(learner: Learner, *rest: Any) -> float:
        if getattr(learner.recipe, fails[-1]):
            raise RuntimeError("no C++ compiler\nSet TORCH_LOGS for more")
        return step(learner, *rest)

    monkeypatch.setattr(autotune, "_step_seconds", failing)
    assert autotune.main(["+recipe=bs256"]) == 0
    said = capsys.readouterr().out
    assert "channels_last=true workers_per_pass=1 threads=null compile=false, chosen in" in said
    assert "compile=true fails (no C++ compiler)\n" in said
    fails.append("channels_last")
    with pytest.raises(RuntimeError, match="no C"):
        autotune.main(["+recipe=bs256"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("+recipe=bs256 hardware=none", "are all given; leave one out, or write hardware=auto"),
        ("+recipe=digits hardware=auto", "digits is a short run, which times no steps and keeps"),
        ("+recipe=bs256 strategy=async", "nobody gives; write, here and for training, hardware=a"),
    ],
)
def test_the_command_needs_something_to_choose(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert autotune.main(words.split()) == 2
    assert sentence in capsys.readouterr().err


def test_a_resume_keeps_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a version without a field are its defaults, and no more threads than cores."""
    monkeypatch.setattr(autotune, "_step_seconds", untimed)
    monkeypatch.setattr(autotune, "_most_threads", lambda: 2)
    for before, values in (
        ({"workers_per_pass": 4}, {"workers_per_pass": 4}),
        ({"threads": 64, "compile": True}, {"threads": 2, "compile": True}),
        ({"channels_last": 1, "workers_per_pass": "8", "threads": 0}, {}),
    ):
        tuned, (line,) = resolve_auto_fields(compose_recipe(*LONG), before, SingleComm(), CPU)
        assert {name: getattr(tuned, name) for name in TIMED} == DEFAULTS | values
        assert line.endswith(", as in the saved run")


# --- Real steps ------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs timed that are short, for a moment."""
    monkeypatch.setattr(lsgd.recipe, "MIN_TIMED_STEPS", 0)
    monkeypatch.setattr(lsgd.recipe, "MIN_TIMED_VALUES", 0)
    monkeypatch.setattr(autotune, "MIN_SECONDS", 0)
    monkeypatch.setattr(autotune, "MAX_SHARE", 100)
    monkeypatch.setattr(autotune, "MAX_SECONDS", 0.2)


@pytest.mark.slow
def test_auto_is_the_same_run(
    tmp_path: Path, timed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the choice is printed first, and written into the start row and the checkpoint."""
    train(recipe(f"run_dir={tmp_path / 'auto'}", "hardware=auto", *SMALL))
    said = capsys.readouterr().out
    train(recipe(f"run_dir={tmp_path / 'fixed'}", "workers_per_pass=4", *SMALL))
    assert_same_run(tmp_path / "auto", tmp_path / "fixed")
    line = read_rows(tmp_path / "auto" / "metrics.jsonl")[0]["machine"].split("; ")[-1]
    assert said.startswith("timing steps ")
    assert line in said
    written = saved(tmp_path / "auto")["recipe"]
    assert f"workers_per_pass={written['workers_per_pass']}" in line.split(",")[0].split()
    assert written["workers_per_pass"] in {1, 2, 4}


def test_only_the_pass_itself_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is done once per step, whatever its micro-batches."""
    clock = SimpleNamespace(now=0.0)

    def step(learner: Learner, task: StepTask, batches: Any) -> None:
        learner.strategy.reducer.start(8, 1)
        clock.now += 5
        next(batches)
        clock.now += 0.25
        learner.strategy.reducer.finish()
        clock.now += 7

    monkeypatch.setattr(autotune, "train_step", step)
    timer = StepTimer(recipe(), 16, CPU, 15.0)
    assert timer._time(recipe(), 2, 4, 3, lambda: clock.now) == pytest.approx(0.25)


@pytest.mark.slow
def test_each_choice_is_the_same_run_and_a_resume_keeps_it(
    tmp_path: Path, timed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume times nothing, and so is equal to the last bit."""
    values = {"channels_last": True, "workers_per_pass": 2, "threads": 1}

    monkeypatch.setattr(
        autotune._Choice, "time", lambda self, _: (replace(self.default, **values), ["chosen"])
    )
    monkeypatch.setattr(autotune, "_most_threads", lambda: 2)
    words = ["hardware=auto", *SMALL]
    train(recipe(f"run_dir={tmp_path / 'auto'}", *words))
    train(recipe(f"run_dir={tmp_path / 'plain'}", "workers_per_pass=4", *SMALL))
    assert_same_run(tmp_path / "auto", tmp_path / "plain")
    written = saved(tmp_path / "auto")
    assert {name: written["recipe"][name] for name in values} == values
    weight = written["model"]["layer1.0.conv1.weight"]
    is_last = weight.is_contiguous(memory_format=torch.channels_last)
    assert is_last
    made = recipe(f"run_dir={tmp_path / 'parts'}", *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recipe, "total_steps", made.steps_per_epoch)
        patch.setattr(Recipe, "epochs_from", lambda self, step: iter([(0, list(range(5)))]))
        train(made)
    monkeypatch.setattr(autotune._Choice, "time", untimed)
    for _ in range(2):
        train(made)
    ours, theirs = saved(tmp_path / "parts")["model"], written["model"]
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.slow
@pytest.mark.dali
def test_a_loader_that_is_there_before_the_timing_takes_any_pass(tmp_path: Path) -> None:
    """DALI's pipeline is built for a largest batch, and which that is has not been found yet."""
    folder = make_folder(tmp_path)
    made = [
        open_folder_inputs(folder, "dali", DATA, "workers=6", "worker_batch=2", "val_batch=2", word)
        for word in ("workers_per_pass=auto", "workers_per_pass=6")
    ]
    ((images, labels),), ((others, names),) = (
        list(inputs.train([MicroBatch(0, np.arange(12), range(6))])) for inputs in made
    )
    assert torch.equal(images, others)
    assert torch.equal(labels, names)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1"], "holds another run"),
        (["data=cifar10", "data.root=/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_timed(
    tmp_path: Path, timed: None, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], message: str
) -> None:
    monkeypatch.setattr(autotune, "_step_seconds", untimed)
    open_once(recipe(f"run_dir={tmp_path}"))
    with pytest.raises(UsageError, match=message):
        train(recipe(f"run_dir={tmp_path}", "hardware=auto", *words))


@pytest.mark.gpu
def test_a_pass_that_fills_the_gpu_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one worker, since there is none smaller."""
    device = torch.device("cuda")
    one = recipe("workers_per_pass=1")
    timer = StepTimer(one, 2, device, 60.0)
    timer.probe(1)
    assert timer.compare(one, replace(one, workers_per_pass=2)) < 2
    monkeypatch.setattr(autotune, "MAX_MEMORY_SHARE", 0.0)
    assert timer.compare(one, replace(one, workers_per_pass=2)) == autotune.NOT_POSSIBLE
