"""workers_per_pass=auto and channels_last=auto have values when training starts; no run differs."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.checkpoints import open_once
from helpers.composed import compose_recipe
from helpers.folders import DATA, make_folder, open_folder_inputs
from helpers.threaded import run_on_threads

from lsgd import autotune
from lsgd.autotune import (
    choose_channels_last,
    choose_workers_per_pass,
    measure_layouts,
    measure_speeds,
    resolve_auto_fields,
)
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.inputs import Batch
from lsgd.job import system
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.run.rows import read_rows
from lsgd.step import train_step
from lsgd.strategy import StepTask
from lsgd.train import train

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache: each test times anew, and none writes into the user's."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def recipe(*words: str) -> Recipe:
    short = ["epochs=2", "schedule.milestones=[1.5]", "schedule.warmup_epochs=1", "log_steps=2"]
    return compose_recipe("+recipe=digits", "precision=float64", *short, *words)


def saved(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def assert_same_run(one: Path, other: Path) -> None:
    """Up to the order of sums: to 1e-10 in float64."""
    ours, theirs = saved(one), saved(other)
    assert all(torch.allclose(ours[key], theirs[key], rtol=0, atol=1e-10) for key in theirs)


def test_auto_is_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what was chosen is said, written down, and one of 1, 2, 4, 8, 16."""
    train(recipe(f"run_dir={tmp_path / 'auto'}", "workers_per_pass=auto"))
    said = capsys.readouterr().out
    train(recipe(f"run_dir={tmp_path / 'fixed'}", "workers_per_pass=16"))
    assert_same_run(tmp_path / "auto", tmp_path / "fixed")
    start = read_rows(tmp_path / "auto" / "metrics.jsonl")[0]
    line = start["machine"].split("; ")[-1]
    before, _, after = said.partition("timing micro-batches of 1, 2, 4, … workers\n")
    assert not before
    assert line in after
    name, _, rest = line.partition(": ")
    assert name in {f"workers_per_pass={2**power}" for power in range(5)}
    assert "thousand examples/s, of 1 … " in rest
    written = torch.load(tmp_path / "auto" / "checkpoint.pt", weights_only=True)["recipe"]
    assert name == f"workers_per_pass={written['workers_per_pass']}"


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


def untimed(*_: object) -> dict[int, float]:
    pytest.fail("passes were timed")


def test_a_resume_keeps_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without timing anything, and so to the last bit; nor is anything timed for a whole run."""
    monkeypatch.setattr(autotune, "measure_speeds", untimed)
    small = [
        "inputs=synthetic",
        "worker_batch=4",
        "data.train_examples=330",
        "data.val_examples=20",
    ]
    train(recipe(f"run_dir={tmp_path / 'whole'}", "workers_per_pass=4", *small))
    made = recipe(f"run_dir={tmp_path / 'parts'}", "workers_per_pass=4", *small)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recipe, "total_steps", made.steps_per_epoch)
        patch.setattr(Recipe, "epochs_from", lambda self, step: iter([(0, list(range(5)))]))
        train(made)
    for _ in range(2):
        train(recipe(f"run_dir={tmp_path / 'parts'}", "workers_per_pass=auto", *small))
    ours, theirs = saved(tmp_path / "parts"), saved(tmp_path / "whole")
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1"], "holds another run"),
        (["data=cifar10", "data.root=/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.setattr(autotune, "measure_speeds", untimed)
    open_once(recipe(f"run_dir={tmp_path}"))
    with pytest.raises(UsageError, match=message):
        train(recipe(f"run_dir={tmp_path}", "workers_per_pass=auto", *words))


@pytest.mark.parametrize(
    ("words", "possible"),
    [
        (["workers=7", "schedule.reference_batch=56"], (1, 2)),
        (
            ["workers=4", "schedule.reference_batch=32", "strategy=sync", "strategy.servers=2"],
            (1, 2, 4),
        ),
    ],
    ids=["7 workers on 3 processes host 3, 2 and 2", "two processes have servers alone"],
)
def test_all_processes_take_one_number(words: list[str], possible: tuple[int, ...]) -> None:
    made = recipe("worker_batch=8", "workers_per_pass=auto", *words)
    found = run_on_threads(3, lambda comm: resolve_auto_fields(made, {}, comm, CPU))
    assert len({chosen.workers_per_pass for chosen, _ in found}) == 1
    assert found[0][0].workers_per_pass in possible
    assert found[0][0].fingerprint == made.fingerprint
    assert found[0][0].strategy == made.strategy


def test_nothing_is_timed_where_each_worker_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "measure_speeds", untimed)
    made = recipe("strategy=async", "workers_per_pass=auto")
    tuned, lines = resolve_auto_fields(made, {}, SingleComm(), CPU)
    assert (tuned.workers_per_pass, lines) == (1, [])


def test_a_noise_scale_gets_steps_of_two_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of all workers would be the fastest, and leave its columns out without a word."""
    monkeypatch.setattr(
        autotune,
        "measure_speeds",
        lambda made, hosted, device: {2**power: 2.0**power for power in range(hosted.bit_length())},
    )
    made = recipe("workers_per_pass=auto", "noise_scale=true")
    tuned, _ = resolve_auto_fields(made, {}, SingleComm(), CPU)
    assert tuned.workers_per_pass == 8
    kept, _ = resolve_auto_fields(made, {"workers_per_pass": 8}, SingleComm(), CPU)
    assert kept.workers_per_pass == 8
    with pytest.raises(UsageError, match="one micro-batch per step; write workers_per_pass=8"):
        resolve_auto_fields(made, {"workers_per_pass": 16}, SingleComm(), CPU)
    plain = recipe("workers_per_pass=auto")
    assert resolve_auto_fields(plain, {}, SingleComm(), CPU)[0].workers_per_pass == 16


def test_the_slowest_process_decides() -> None:
    """Of what every process could time: a pass of 8 does not fit everywhere."""
    one = {1: 100.0, 2: 300.0, 4: 400.0, 8: 900.0}
    other = {1: 200.0, 2: 250.0, 4: 150.0}
    assert choose_workers_per_pass([one, other]) == (2, 250.0)
    assert choose_workers_per_pass([one]) == (8, 900.0)


def test_a_number_is_taken_as_it_is() -> None:
    made = recipe("workers_per_pass=3")
    for started_with in ({}, {"workers_per_pass": 8, "channels_last": True}):
        assert resolve_auto_fields(made, started_with, SingleComm(), CPU) == (made, [])


def test_passes_that_do_not_fit_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that went before are; and if not even one worker fits, that is the error."""

    def full_from(workers: int) -> None:
        def step(learner: Learner, task: StepTask, batches: Iterator[Batch]) -> None:
            if len(task.micro_batches[0].workers) >= workers:
                raise torch.OutOfMemoryError("planted")
            train_step(learner, task, batches)

        monkeypatch.setattr(autotune, "train_step", step)

    full_from(4)
    assert [*measure_speeds(recipe(), 16, CPU)] == [1, 2]
    full_from(1)
    with pytest.raises(torch.OutOfMemoryError, match="planted"):
        measure_speeds(recipe(), 16, CPU)


def test_no_larger_pass_is_tried_once_they_slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or once the time is over, of which a pass of ResNet-50 may need much."""
    seconds = iter([1.0, 1.0, 4.0, 1.0, 1.0])
    monkeypatch.setattr(autotune, "_times", lambda *_: [next(seconds)])
    assert [*measure_speeds(recipe(), 16, CPU)] == [1, 2, 4]
    monkeypatch.setattr(autotune, "TIME_BUDGET", 2.9)  # one more would take 2 s
    assert [*measure_speeds(recipe(), 16, CPU)] == [1]


def test_only_the_pass_itself_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what the first of each does, such as compiling, nor what there is once per step."""
    clock = SimpleNamespace(now=0.0, started=set())
    monkeypatch.setattr(autotune.time, "perf_counter", lambda: clock.now)

    def step(learner: Learner, task: StepTask, batches: Iterator[Batch]) -> None:
        workers = len(task.micro_batches[0].workers)
        learner.strategy.reducer.start(8, 1)
        clock.now += 5
        next(batches)
        clock.now += workers / 10 + (0 if workers in clock.started else 100)
        clock.started.add(workers)
        learner.strategy.reducer.finish()
        clock.now += 7

    monkeypatch.setattr(autotune, "train_step", step)
    made = recipe()
    found = measure_speeds(made, 16, CPU)
    assert [*found] == [1, 2, 4, 8, 16]
    assert [*found.values()] == pytest.approx([10 * made.worker_batch] * 5)


def test_a_container_has_the_memory_it_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(system, "CGROUP_LIMIT", limit)
    limit.write_text("max\n")
    assert len(measure_speeds(recipe(), 2, CPU)) == 2
    limit.write_text("1000000\n")
    assert [*measure_speeds(recipe(), 2, CPU)] == [1]


@pytest.mark.gpu
def test_a_pass_that_fills_the_gpu_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one worker, since there is none smaller."""
    device = torch.device("cuda")
    assert 2 in measure_speeds(recipe(), 2, device)
    monkeypatch.setattr(autotune, "MAX_MEMORY_SHARE", 0.0)
    assert [*measure_speeds(recipe(), 2, device)] == [1]


@pytest.mark.parametrize("found", [True, False])
def test_the_faster_format_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    """It trains in what was found faster, writes it down, and a resume times nothing."""
    monkeypatch.setattr(autotune, "measure_layouts", lambda *_: 0.5 if found else 0.98)
    words = ["epochs=1", "schedule.milestones=[]"]
    train(recipe(f"run_dir={tmp_path / 'auto'}", *words, "hardware=auto", "workers_per_pass=4"))
    train(recipe(f"run_dir={tmp_path / 'plain'}", *words, "workers_per_pass=4"))
    assert_same_run(tmp_path / "auto", tmp_path / "plain")
    written = torch.load(tmp_path / "auto" / "checkpoint.pt", weights_only=True)
    assert written["recipe"]["channels_last"] is found
    weight = written["model"]["layer1.0.conv1.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last) is found
    line = read_rows(tmp_path / "auto" / "metrics.jsonl")[0]["machine"].split("; ")[-1]
    ratio = "0.50" if found else "0.98"
    assert line == f"channels_last={str(found).lower()}: {ratio} times the time of channels first"
    monkeypatch.setattr(autotune, "measure_layouts", untimed)
    train(recipe(f"run_dir={tmp_path / 'auto'}", *words, "hardware=auto", "workers_per_pass=4"))
    line = read_rows(tmp_path / "auto" / "metrics.jsonl")[-1]["machine"].split("; ")[-1]
    assert line == f"channels_last={str(found).lower()}, as in the saved run"


def test_a_format_is_not_left_for_less_than_the_error_of_a_timing() -> None:
    """And the process that gains least decides, since the others wait for it."""
    assert choose_channels_last([0.98]) == (False, 0.98)
    assert choose_channels_last([0.9]) == (True, 0.9)
    assert choose_channels_last([0.5, 1.2]) == (False, 1.2)


def test_both_formats_are_timed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns, on one micro-batch of the chosen workers, with images for LAYOUT_STEP seconds.

    A single comparison in which the machine was busy does not decide.
    """
    timed: list[tuple[bool, int, int]] = []
    slow = iter([1, 1, 9])

    def seconds(learner: Learner, task: StepTask, *_: object) -> list[float]:
        (only,) = task.micro_batches
        layout = bool(learner.recipe.channels_last)
        timed.append((layout, len(only.workers), len(only.examples)))
        each = next(slow, 1) * (0.05 if layout else 0.1)
        return [each * len(only.examples) / len(only.workers), 9.0]

    monkeypatch.setattr(autotune, "_times", seconds)
    made = recipe("worker_batch=8", "workers_per_pass=4", "channels_last=auto")
    assert measure_layouts(made, 16, CPU) == pytest.approx(0.5)
    assert timed == [(False, 4, 8), *([(True, 4, 16), (False, 4, 16)] * 4)]
    timed.clear()
    monkeypatch.setattr(autotune, "LAYOUT_BUDGET", 0.0)
    measure_layouts(made, 2, CPU)
    assert timed == [(False, 2, 4), (True, 2, 8), (False, 2, 8)]
    assert measure_layouts(made, 0, CPU) is None


def choose(*words: str) -> tuple[int | str, bool | str, list[str]]:
    tuned, lines = resolve_auto_fields(recipe(*words), {}, SingleComm(), CPU)
    return tuned.workers_per_pass, tuned.channels_last, lines


def test_the_same_command_makes_the_same_choice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without timing anything, whatever the seed; another network or size is timed."""
    monkeypatch.setattr(autotune, "measure_speeds", lambda *_: {1: 5.0, 2: 9.0})
    monkeypatch.setattr(autotune, "measure_layouts", lambda *_: 0.5)
    assert choose("hardware=auto")[:2] == (2, True)
    assert choose("channels_last=auto", "workers_per_pass=4")[:2] == (4, True)
    monkeypatch.setattr(autotune, "measure_speeds", untimed)
    monkeypatch.setattr(autotune, "measure_layouts", untimed)
    workers, is_last, lines = choose("hardware=auto", "seed=7")
    assert (workers, is_last) == (2, True)
    assert lines[:2] == [
        "workers_per_pass=2, as timed before",
        "channels_last=true, as timed before",
    ]
    assert lines[2].startswith(f"that choice: {cache}/lsgd/autotune/")
    assert choose("channels_last=auto", "workers_per_pass=4")[:2] == (4, True)
    for other in ("worker_batch=4", "model=resnet20", "precision=float32", "workers=8"):
        with pytest.raises(pytest.fail.Exception, match="passes were timed"):
            choose("hardware=auto", other)


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"fastest": 1}', "other", "text"])
def test_a_damaged_record_is_timed_anew(
    cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(autotune, "measure_speeds", lambda *_: {1: 5.0, 2: 9.0})
    choose("workers_per_pass=auto")
    (file,) = cache.glob("lsgd/autotune/*.json")
    whole = file.read_text()
    changed = {
        "other": whole.replace('"worker_batch": ', '"worker_batch": 9'),
        "text": whole.replace('"workers_per_pass": 2', '"workers_per_pass": "2"'),
    }
    file.write_text(changed.get(damage, damage))
    assert file.read_text() != whole
    monkeypatch.setattr(autotune, "measure_speeds", lambda *_: {1: 9.0, 2: 5.0})
    assert choose("workers_per_pass=auto")[0] == 1
    monkeypatch.setattr(autotune, "measure_speeds", untimed)
    assert choose("workers_per_pass=auto")[0] == 1


@pytest.mark.parametrize("home", ["a file", "none"])
def test_without_a_cache_each_run_is_timed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home directory")

    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file") if home == "a file" else "")
    monkeypatch.setattr(Path, "home", no_home)
    for speeds, workers in (({1: 5.0, 2: 9.0}, 2), ({1: 9.0, 2: 5.0}, 1)):
        monkeypatch.setattr(autotune, "measure_speeds", lambda *_, speeds=speeds: speeds)
        assert choose("workers_per_pass=auto")[0] == workers


def test_all_processes_take_one_format() -> None:
    made = recipe("worker_batch=8", "workers=2", "schedule.reference_batch=16", "hardware=auto")
    found = run_on_threads(3, lambda comm: resolve_auto_fields(made, {}, comm, CPU))
    assert len({(one.workers_per_pass, one.channels_last) for one, _ in found}) == 1
    assert found[0][0].channels_last in (True, False)
    assert found[0][0].fingerprint == made.fingerprint


@pytest.mark.parametrize("name", ["ptb_small", "conll_bilstm", "sst_treelstm"])
def test_only_images_have_a_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere hardware=auto times the micro-batches alone."""
    monkeypatch.setattr(autotune, "measure_layouts", untimed)
    monkeypatch.setattr(autotune, "measure_speeds", lambda *_: {1: 5.0, 2: 9.0})
    made = compose_recipe(f"+recipe={name}", "hardware=auto")
    tuned, lines = resolve_auto_fields(made, {}, SingleComm(), CPU)
    assert (tuned.channels_last, tuned.workers_per_pass, len(lines)) == (False, 2, 1)


@pytest.mark.parametrize(
    ("word", "remedy"),
    [("workers_per_pass=auto", "workers_per_pass=8"), ("channels_last=auto", "true or false")],
)
def test_a_model_that_is_compiled_needs_a_value(word: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=rf"compiled.*{remedy}"):
        recipe(word, "compile=true")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("fast", "=fast is not possible; write 1 or more, or auto"),
        ("1.5", "=1.5 is not a whole number or auto; write for example workers_per_pass=8"),
    ],
)
def test_other_words_are_refused(value: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^workers_per_pass{message}$"):
        recipe(f"workers_per_pass={value}")


def test_other_formats_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^channels_last=fast is unknown; write one of false, true, auto$"
    ):
        recipe("channels_last=fast")
    with pytest.raises(UsageError, match=r"^channels_last=1\.5 is not true, false or auto; write"):
        recipe("channels_last=1.5")


def test_where_nothing_is_timed_a_number_is_asked_for() -> None:
    with pytest.raises(UsageError, match="workers_per_pass=auto is found where training starts"):
        _ = recipe("workers_per_pass=auto").micro_batch_workers
