import errno
import json
import math
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.event_file import points
from hypothesis import given
from hypothesis import strategies as st

from lsgd.comm.single import SingleComm
from lsgd.config import load_recipe
from lsgd.errors import NotSavedError
from lsgd.job.device import device_name
from lsgd.run import metrics, utilization
from lsgd.run.console import _speed
from lsgd.run.curves import tag
from lsgd.run.metrics import Meter, RunLog, TimedBatches, open_log, to_writable
from lsgd.run.rows import read_rows
from lsgd.run.slowness import ProcessWaits
from lsgd.workloads import compute_metrics
from lsgd.workloads.images import ImageClassification

TRAIN = {"epoch": 0.5, "lr": 0.1, "images_per_second": 100.0}
RATES = {"val_top1_error": 40.0, "train_top1_error": 50.0, "val_top5_error": 10.0}
EPOCH = TRAIN | RATES | {"epoch": 3}
IMAGES = ImageClassification(compose_recipe("+recipe=digits"), torch.device("cpu"))


def progress(first_step: int = 0, epochs: Collection[int] = range(9)) -> SimpleNamespace:
    """A run with 20 steps of 10 images, of which these steps have been made."""
    recipe = SimpleNamespace(
        trackers=[],
        threads=None,
        data=SimpleNamespace(workload="language", rated_classes=10),
        has_stopped=lambda rates: False,
        examples=lambda steps: 10 * steps,
        total_steps=20,
        summary=lambda: "a run\nof two lines",
        describe_evaluations=lambda: "",
        describe_noise_gaps=lambda processes: "",
    )
    return SimpleNamespace(
        recipe=recipe,
        comm=SingleComm(),
        device=torch.device("cpu"),
        next_step=first_step,
        epoch_metrics={epoch: {} for epoch in epochs},
        evaluations={7: {}},
        workload=IMAGES,
        scores=partial(compute_metrics, IMAGES),
        save_artifacts=lambda folder: {},
    )


def log_in(folder: Path, first_step: int = 0, epochs: Collection[int] = range(9)) -> RunLog:
    (folder / "config.yaml").write_text("workers: 5\nworker_batch: 2\n")
    return RunLog(progress(first_step, epochs), folder)


def write_steps(log: RunLog, steps: range, loss: float = 1.0) -> None:
    for step in steps:
        log.write("train", step, loss=loss / step, **TRAIN)


def drawn(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard should show of these rows; it keeps values in single precision."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for key, value in row.items():
            if key not in ("kind", "step", "epoch") and isinstance(value, int | float):
                train = row["kind"] == "train"
                at = 10 * row["step"] if train else row["epoch"]
                expected.setdefault(tag(row["kind"], key, "top1_error"), []).append(
                    (at, pytest.approx(value, rel=1e-6))
                )
    return expected


def test_rows_and_curves_hold_what_was_written(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        log.start(progress(), "a loader", "workers_per_pass=3")
        write_steps(log, range(1, 4))
        log.write("epoch", 3, **EPOCH)
    start, *rows = read_rows(tmp_path / "metrics.jsonl")
    assert (start["kind"], start["step"]) == ("start", 0)
    assert start["metric"] == "top1_error"
    assert start["machine"].startswith("1 process, CPU, threads per process: ")
    assert start["machine"].endswith("; a loader; workers_per_pass=3")
    assert start["torch"] == torch.__version__
    assert start["python"] == platform.python_version()
    assert {"lsgd", "numpy", "torchvision", "hydra-core"} < start.keys()
    assert start["device"] == device_name(torch.device("cpu"))
    assert (start["processes"], start["inputs"]) == (1, "a loader")
    steps = [{"kind": "train", "step": s, "loss": 1 / s} | TRAIN for s in range(1, 4)]
    assert rows == [*steps, {"kind": "epoch", "step": 3} | EPOCH]
    assert points(tmp_path) == drawn(rows)
    # In the order in which TensorBoard shows them, which is that of the names.
    assert sorted(points(tmp_path)) == [
        "1_result/val_top1_error",
        "2_training_by_examples/loss",
        "3_rates_by_epoch/train_top1_error",
        "3_rates_by_epoch/val_top5_error",
        *(f"4_more_by_examples/{key}" for key in ("images_per_second", "lr")),
        *(f"5_more_by_epoch/{key}" for key in ("images_per_second", "lr")),
    ]


def test_what_is_not_a_number_is_null_and_no_point(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        for step, value in enumerate((1.0, math.nan, math.inf, -math.inf, 2.0)):
            log.write("train", step, loss=value, **TRAIN)
    text = (tmp_path / "metrics.jsonl").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert [row["loss"] for row in rows] == [1.0, None, None, None, 2.0]
    assert points(tmp_path)["2_training_by_examples/loss"] == [(0, 1.0), (40, 2.0)]


def test_an_epoch_that_is_evaluated_again_is_there_once(tmp_path: Path) -> None:
    """Left in the evaluation after step 6, resumed, and killed before that was saved."""
    with log_in(tmp_path) as log:
        write_steps(log, range(1, 7))
        log.write("epoch", 3, **EPOCH)
        log.write("epoch", 6, **EPOCH | {"epoch": 4})
    with log_in(tmp_path, first_step=6, epochs=[3]):
        pass
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "epoch"] == [3]
    assert [row["step"] for row in rows if row["kind"] == "train"] == [*range(1, 7)]


def test_after_a_resume_no_step_is_there_twice(tmp_path: Path) -> None:
    """Killed after step 8 with a checkpoint of step 5, then again: steps 6 to 8 are made anew."""
    with log_in(tmp_path) as log:
        write_steps(log, range(1, 9))
    for last in (9, 12):
        with log_in(tmp_path, first_step=5) as log:
            write_steps(log, range(6, last), loss=2.0)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 12))
    assert [row["loss"] * row["step"] for row in rows] == pytest.approx([1.0] * 5 + [2.0] * 6)
    assert points(tmp_path) == drawn(rows)


def test_an_evaluation_that_no_checkpoint_has_is_made_anew(tmp_path: Path) -> None:
    """Of those after steps 7 and 8, the checkpoint of step 8 has the first."""
    with log_in(tmp_path) as log:
        for step in (7, 8):
            log.write("evaluation", step, epoch=step / 20, val_top1_error=9.0)
    with log_in(tmp_path, first_step=8):
        pass
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [7]
    assert [at for at, _ in points(tmp_path)["2_training_by_examples/val_top1_error"]] == [70]


@given(st.data())
def test_a_line_cut_short_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Wherever the kill cut it; the next row then has a line of its own."""
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    rows = [{"kind": "train", "step": step, "loss": step / 7} for step in range(4)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    cut = text[: data.draw(st.integers(0, len(text)))]
    path.write_text(cut)
    kept = [row for row in rows if json.dumps(row) in cut]
    assert read_rows(path) == kept
    metrics._drop_rows_after(path, 2, {})
    assert [each.name for each in path.parent.iterdir()] == [path.name], "which is no damage"
    with path.open("a") as file:
        file.write(json.dumps(rows[3]) + "\n")
    assert read_rows(path) == [row for row in kept if row["step"] <= 2] + [rows[3]]


def test_rows_behind_a_damaged_line_are_set_aside_and_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    for number in range(1, 3):
        with log_in(tmp_path) as log:
            write_steps(log, range(1, 7))
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:2], "\0\0\n", *lines[3:]]))
        damaged = path.read_bytes()
        with log_in(tmp_path, first_step=6) as log:
            log.start(progress(6), "a loader")
        aside = tmp_path / ("metrics.jsonl.damaged" + ("" if number == 1 else f"-{number}"))
        assert aside.read_bytes() == damaged
        warning = read_rows(path)[-1]
        assert (warning["kind"], [row["step"] for row in read_rows(path)][:2]) == (
            "warning",
            [1, 2],
        )
        assert "is damaged in line 3" in warning["text"]
        assert str(aside) in capsys.readouterr().out
        path.unlink()


def test_rows_that_the_disk_has_lost_are_written_again_from_the_checkpoint(tmp_path: Path) -> None:
    """After a power failure it may be newer; a run without them would never count as finished."""
    recipe = compose_recipe("+recipe=digits")
    ends = [recipe.first_step(epoch) for epoch in (1, 2, 3)]
    run = progress(ends[2])
    run.recipe = recipe
    run.epoch_metrics = {epoch: {"val_loss": epoch / 7} for epoch in (1, 2, 3)}
    run.evaluations = {ends[0] + 1: {"val_loss": 2.0}}
    path = tmp_path / "metrics.jsonl"
    (tmp_path / "config.yaml").write_text("")
    kinds = [("start", 0), ("train", 5), ("epoch", ends[0]), ("start", ends[0]), ("train", ends[1])]
    rows = [{"kind": kind, "step": step} for kind, step in kinds]
    rows[2]["epoch"] = 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '["of", "others"]\n')
    with RunLog(run, tmp_path) as log:
        assert "lost the rows of 3 epochs and evaluations" in log.damage
        assert "is damaged in line 6" in log.damage
    first, again = (
        {"kind": "epoch", "step": ends[epoch], "epoch": epoch + 1, "lr": recipe.lr(ends[epoch] - 1),
         "val_loss": (epoch + 1) / 7}
        for epoch in (1, 2)
    )  # fmt: skip
    evaluated = {"kind": "evaluation", "step": ends[0] + 1, "epoch": recipe.epoch(ends[0] + 1)}
    expected = [*rows[:4], evaluated | {"val_loss": 2.0}, rows[4], first, again]
    assert read_rows(path) == expected
    with RunLog(run, tmp_path) as log:
        assert not log.damage
    assert read_rows(path) == expected


class ReadRow(dict[str, Any]):
    """A row that can be counted while it is in memory."""

    __hash__ = object.__hash__


def test_a_resume_parses_each_row_once_and_keeps_the_last_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From which the event file is continued; those of 2 kB are some 20."""
    with log_in(tmp_path) as log:
        write_steps(log, range(1, 401))
    alive: WeakSet[ReadRow] = WeakSet()
    parsed: list[int] = []

    def parse(line: bytes) -> ReadRow:
        row = ReadRow(json.loads(line))
        alive.add(row)
        parsed.append(len(alive))
        return row

    monkeypatch.setattr("lsgd.run.rows.LONGEST", 2000)
    monkeypatch.setattr("lsgd.run.rows.parse_json", parse)
    log_in(tmp_path, first_step=300).__exit__(None, None, None)
    assert 400 < len(parsed) < 430
    assert max(parsed) < 30
    monkeypatch.undo()
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [*range(1, 301)]
    assert points(tmp_path) == drawn(read_rows(tmp_path / "metrics.jsonl"))


def test_only_the_first_process_writes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = progress()
    run.comm.rank = 1
    with open_log(run, tmp_path) as log:
        log.start(run, "a loader")
        log.write("train", 1, loss=1.0, **TRAIN)
        log.end("done")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""
    (tmp_path / "config.yaml").touch()
    run.comm.rank = 0
    with open_log(run, tmp_path):
        assert (tmp_path / "metrics.jsonl").exists()


DIES = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from lsgd.rules.metric import TOP1
from lsgd.run.metrics import RunLog
recipe = SimpleNamespace(
    examples=lambda steps: 10 * steps,
    total_steps=20,
    has_stopped=bool,
    data=SimpleNamespace(rated_classes=10),
)
workload = SimpleNamespace(metric=TOP1)
run = SimpleNamespace(recipe=recipe, next_step=0, workload=workload)
run.epoch_metrics, run.evaluations = {}, {}
log = RunLog(run, Path(sys.argv[1]))
for step in range(1, 9):
    log.write("train", step, loss=1 / step, epoch=step / 10, lr=0.1, images_per_second=1.0)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], [(
            "faster on this GPU: hardware=a100, or channels_last=true, compile=true and larger "
            "micro-batches one by one; and precision=tf32 or bfloat16, which makes another run"
        )]),
        (["hardware=a100"], ["deterministic=false: a repeated run differs in its last bits"]),
        (["hardware=a100", "deterministic=true"], []),
        (["compile=true"], []),
    ],
)  # fmt: skip
def test_a_run_on_a_gpu_says_what_would_be_faster_or_what_speed_costs(
    words: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    recipe = compose_recipe("+recipe=digits", *words)
    assert metrics._of_speed(recipe, torch.device("cuda", 0)) == said
    assert metrics._of_speed(recipe, torch.device("cpu")) == []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    older = [each.replace("a100", "v100").replace("tf32 or bfloat16", "float16") for each in said]
    assert metrics._of_speed(recipe, torch.device("cuda", 0)) == older


@pytest.mark.slow
def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    """Steps before the checkpoint are not made again, so what is lost then is lost for good."""
    (tmp_path / "config.yaml").touch()
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=900,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert points(tmp_path) == drawn(rows)


def test_rates_are_of_the_time_since_the_last_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the test turns."""
    clock = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: clock[0])

    def batches() -> Iterator[int]:
        for wait in (1.0, 2.0, 0.5):
            clock[0] += wait
            yield 0

    def state(examples: int, top1: int, loss: float) -> metrics.MetricSumsState:
        counts = torch.tensor([examples, top1, examples])
        return {"counts": counts, "loss": torch.tensor(loss)}

    monkeypatch.setattr(metrics, "memory_statistics", lambda _: {"peak_memory_mb": 9.0})
    timed, run = TimedBatches(batches()), progress()
    meter = Meter(run, state(10, 5, 10.0), timed)
    next(timed)
    clock[0] += 3
    run.next_step += 2
    first = {"loss": 2.0, "top1_error": 60.0, "images_per_second": 5.0, "data_wait": 0.25}
    first |= {"step_seconds": 2.0, "peak_memory_mb": 9.0}
    assert meter.read(state(30, 13, 50.0)) == pytest.approx(first)
    next(timed)
    clock[0] += 2
    run.next_step += 1
    second = {"loss": 1.0, "top1_error": 0.0, "images_per_second": 2.5, "data_wait": 0.5}
    second |= {"step_seconds": 4.0, "peak_memory_mb": 9.0}
    assert meter.read(state(40, 23, 60.0)) == pytest.approx(second)
    clock[0] += 1
    diverged = meter.read(state(50, 33, math.nan))
    assert math.isnan(diverged["loss"])
    assert math.isnan(diverged["top1_error"])
    assert math.isnan(diverged["step_seconds"])  # between two steps
    clock[0] -= 1
    whole = {"images_per_second": 30 / 8, "data_wait": 3 / 8, "step_seconds": 8 / 3}
    whole |= {"peak_memory_mb": 9.0}
    assert meter.read_epoch(state(40, 23, 60.0)) == pytest.approx(whole)
    assert list(timed) == [0]
    assert timed.waited == 3.5


def test_steps_that_count_nothing_have_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one without a labelled token; a mean over none would end the run."""
    monkeypatch.setattr(metrics, "memory_statistics", lambda _: {})
    sums, run = {"counts": torch.tensor([7, 0, 7]), "loss": torch.tensor(1.0)}, progress()
    meter = Meter(run, sums, TimedBatches(iter(())))
    run.next_step += 1
    row = meter.read(sums)
    assert all(map(math.isnan, (row["loss"], row["top1_error"], row["images_per_second"])))
    assert [*_speed({key: to_writable(value) for key, value in row.items()})] == ["0 images/s"]


def test_a_meter_leaves_out_the_time_since_the_one_before_it_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An evaluation of 100 s is within the epoch, and within the steps of one training row."""
    clock = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: clock[0])

    def batches() -> Iterator[int]:
        while True:
            clock[0] += 2
            yield 0

    def state(examples: int) -> metrics.MetricSumsState:
        counts = torch.tensor([examples, 0, examples])
        return {"counts": counts, "loss": torch.tensor(float(examples))}

    monkeypatch.setattr(metrics, "memory_statistics", lambda _: {})
    meter, seen, run = None, 0, progress()
    for _ in range(3):
        timed = TimedBatches(batches())
        meter = Meter(run, state(seen), timed, meter)
        next(timed)
        clock[0] += 2
        seen += 20
        run.next_step += 2
        meter.stop()
        clock[0] += 100
    clock[0] -= 100
    expected = {"images_per_second": 5.0, "data_wait": 0.5, "step_seconds": 2.0}
    assert meter.read_epoch(state(60)) == expected
    assert meter.read(state(60)) == {"loss": 1.0, "top1_error": 100.0, **expected}


def test_waits_for_other_processes_are_a_share_of_the_time_between_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single process has no such column."""
    clock, waited = [0.0], [5.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(metrics, "seconds_waited", lambda: waited[0])
    counts = {"counts": torch.tensor([0, 0, 0]), "loss": torch.tensor(0.0)}
    run = progress()
    run.comm, run.hosted_workers = SimpleNamespace(world_size=2), 4
    run.recipe.strategy = SimpleNamespace(name="allreduce")
    faster = ProcessWaits("node7", 4, 0.65, 0.0)
    run.comm.gather_objects = lambda mine: [mine, faster]
    meter = Meter(run, counts, TimedBatches(iter(())))
    shares = []
    for number, wait in enumerate((1.0, 3.0), 1):
        clock[0] += 4
        waited[0] += wait
        run.next_step += 1
        seen = {"counts": torch.tensor([8, 0, 8]) * number, "loss": torch.tensor(1.0)}
        shares.append(meter.read(seen)["communication_wait"])
    assert shares == [0.25, 0.75]
    row = meter.read_epoch(seen)
    assert (row["communication_wait"], row["straggler"]) == (0.5, platform.node())
    run.comm.gather_objects = lambda mine: [mine, faster._replace(communication=0.55)]
    assert "straggler" not in meter.read_epoch(seen)
    run.comm = SingleComm()
    assert "communication_wait" not in meter.read_epoch(seen)


@pytest.mark.slow
def test_the_share_of_the_peak_follows_from_the_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ResNet-50 of 224 pixels takes 24.3 GFLOP per image, as `plan bound` counts them.

    Of images of another size than evaluated, the trained ones count.
    """
    recipe = load_recipe(["recipe=bs8k", "precision=bfloat16"])
    assert utilization.flops_per_image(recipe) == 24_299_077_632
    monkeypatch.setattr(utilization, "device_name", lambda _: "NVIDIA H200")
    gpu = torch.device("cuda")
    share = utilization.utilization_per_speed(recipe, gpu, 8)
    assert share == pytest.approx(24_299_077_632 / (8 * 989e12))
    trained, of_size = (
        utilization.flops_per_image(load_recipe(["recipe=bs8k", "model=small_resnet", word]))
        for word in ("image_sizes.points=[[0, 112]]", "data.image_size=112")
    )
    assert trained == of_size
    several = "image_sizes.points=[[0, 112], [40, 224]]"
    for other in ("precision=float64", "strategy=async", several):
        of_other = load_recipe(["recipe=bs8k", other])
        assert utilization.utilization_per_speed(of_other, gpu, 8) is None
    assert utilization.utilization_per_speed(recipe, torch.device("cpu"), 8) is None
    with log_in(tmp_path) as log:
        log.utilization = 1e-4
        log.write("train", 1, loss=1.0, **TRAIN)
        log.write("evaluation", 1, epoch=0.5)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row.get("mfu") for row in rows] == [pytest.approx(0.01), None]


def test_progress_is_of_passes_and_its_time_of_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 passes of a second each make a step, and an evaluation of 20 s ends each epoch."""
    clock = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: clock[0])
    recipe = compose_recipe(
        "+recipe=digits", "epochs=3", "schedule.milestones=[2]", "schedule.warmup_epochs=1"
    )
    run, steps = progress(), recipe.steps_per_epoch
    run.recipe, run.micro_batches_per_step = recipe, 4
    (tmp_path / "config.yaml").touch()
    left: list[tuple[float | None, ...]] = []
    positions: list[float] = []
    with RunLog(run, tmp_path) as log:
        log.console.set_time_left = lambda *of_epoch_and_run, at_most: left.append(of_epoch_and_run)
        log.console.show_training = lambda position, epoch: positions.append(position)
        for epoch in range(2):
            passes = iter(range(4 * steps))
            timed = log.watch_training(passes, range(epoch * steps, (epoch + 1) * steps))
            for number, _ in enumerate(timed):
                clock[0] += 1.0
                run.next_step = epoch * steps + (number + 1) // 4
            for done in (0, 1):
                log.watch_evaluation("val", done, 1)
                clock[0] += 20.0 * (1 - done)
            log.write("epoch", run.next_step, **EPOCH | {"epoch": epoch + 1})
    assert [each for each in positions if each < 2] == [0.25 * quarter for quarter in range(1, 8)]
    # In the first epoch nothing is known of an evaluation, and in the second all is.
    assert (4 * (steps - 1), 4 * (3 * steps - 1)) in left
    assert (4 * (steps - 1), 4 * (2 * steps - 1) + 2 * 20) in left


def test_what_a_full_disk_does_not_take_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """The orders of a live run, in a file beside its rows; this process ends, and resumes."""

    def keep(folder: Path) -> dict[str, str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with log_in(tmp_path) as log:
        log.run.save_artifacts = keep
        with pytest.raises(
            NotSavedError, match=r"the record of the run .* could not be written \(No space"
        ) as end:
            log.write("epoch", 10, **EPOCH)
        assert end.value.is_local
    assert not read_rows(tmp_path / "metrics.jsonl")
