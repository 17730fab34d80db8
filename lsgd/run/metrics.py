"""The log of a run: metrics.jsonl, TensorBoard curves and console output.

Only process 0 has a log. No row is duplicated after a resume.
"""

import json
import logging
import math
import platform
import shutil
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch

from lsgd.comm import Comm, describe, seconds_waited
from lsgd.errors import DivergedError, converting_disk_full
from lsgd.files import AppendOnlyFile, atomic_write
from lsgd.inputs import indexed_class_names
from lsgd.job.device import (
    device_name,
    is_nvidia,
    memory_statistics,
    preset,
    reset_peak_device_memory,
)
from lsgd.metric_sums import MetricSumsState, subtract_sums
from lsgd.recipe import Recipe
from lsgd.rules import noise_scale
from lsgd.rules.metric import Metric
from lsgd.run import provenance
from lsgd.run.class_names import write_class_names
from lsgd.run.console import Console
from lsgd.run.remaining import RemainingTime, equal_steps_left
from lsgd.run.rows import MEASURED, PER_SECOND, STRAGGLER, Row, RowReader, is_row
from lsgd.run.slowness import ProcessWaits, SlownessCheck, find_straggler
from lsgd.run.trackers import WAIT, TrackerProcesses
from lsgd.run.utilization import utilization_per_speed
from lsgd.run.versions import library_versions
from lsgd.scores import Scores
from lsgd.untrusted_files import open_regular

REPORT_EVERY = 1.0
"""The seconds between two progress reports of training or of an evaluation."""

_listener: ContextVar[Callable[[Row], object] | None] = ContextVar("_listener", default=None)


@contextmanager
def row_callback(listener: Callable[[Row], object] | None) -> Iterator[None]:
    """Call a function with each metrics.jsonl row of the logs opened within this context.

    The call follows the write. An exception of the listener ends the run.
    """
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


class MeterReading(NamedTuple):
    """The sums, the number of steps and the clocks of a run at one moment, in seconds."""

    sums: MetricSumsState
    steps: int
    time: float
    data_wait: float
    """The total wait for data."""
    process_wait: float
    """The total wait for other processes."""


class CountedNames(Protocol):
    """The part of a workload that a run's log reads: its metric and the names of its counts."""

    @property
    def metric(self) -> Metric:
        """The metric of evaluations, from which the final metric of the run is computed."""

    @property
    def count_names(self) -> tuple[str, ...]:
        """The names of the counted units, such as images; the first is the unit of the speed."""


class LoggedRun(Protocol):
    """The part of a training run that its log reads, such as the next step and the metrics."""

    recipe: Recipe
    comm: Comm
    device: torch.device
    epoch_metrics: dict[int, dict[str, float]]
    evaluations: dict[int, dict[str, float]]

    @property
    def workload(self) -> CountedNames:
        """The workload of the run, which names its metric and counted units."""

    @property
    def next_step(self) -> int:
        """The index of the next training step of the run."""

    @property
    def hosted_workers(self) -> int:
        """The number of workers that this process hosts."""

    @property
    def micro_batches_per_step(self) -> int:
        """The number of micro-batches per full step on this process."""

    def scores(self, counted: MetricSumsState) -> Scores:
        """Convert sums of losses and counts over training examples into metrics by name."""

    def save_artifacts(self, folder: Path) -> dict[str, str]:
        """Write the strategy's files into the run folder; return columns for the epoch's row."""


class Log:
    """The silent log of a run on every process but process 0, and the base class of RunLog."""

    def start(self, run: LoggedRun, loader: str, *choices: str) -> None:
        """Log the start of a run: its recipe, hardware, data loader and choices for `auto`."""

    def end(self, outcome: str) -> None:
        """Log the outcome of the run, one line of text."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write one metrics.jsonl row: its kind, the number of steps made so far, and values."""

    def watch_training(self, batches: Iterator[Any], steps: Sequence[int]) -> "TimedBatches":
        """Wrap the batches of some steps of an epoch, to time waits for data and show progress."""
        return TimedBatches(batches)

    def watch_evaluation(self, split: str, done: int, passes: int) -> None:
        """Show how many of this process's micro-batches of an evaluation set are evaluated."""

    def warn(self, step: int, text: str) -> None:
        """Log a warning about a fault that does not end the run, as a row and a console line."""

    def print_text(self, text: str) -> None:
        """Print text on the console, without writing a row."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files of the log, if it has any."""


def open_log(run: LoggedRun, folder: Path) -> Log:
    """Open the log of a run in its folder: a RunLog on process 0, a silent log on the others."""
    return RunLog(run, folder) if run.comm.rank == 0 else Log()


class RunLog(Log):
    """The log of a run on process 0: it writes metrics.jsonl, a TensorBoard file and the console.

    At the start it drops the rows of later steps and of unfinished epochs: no checkpoint contains
    these steps, so they are made again. It also drops the rows after a damaged line, once the file
    has been copied to a backup. Content that meets a full disk is written when there is space
    again.
    """

    def __init__(self, run: LoggedRun, folder: Path) -> None:
        # Imported here, since only one process of a job and no other tool needs TensorBoard.
        from lsgd.run.curves import Curves

        path = folder / "metrics.jsonl"
        made = {"epoch": run.epoch_metrics, "evaluation": run.evaluations}
        self.damage = _drop_rows_after(path, run.next_step, made, _saved_rows(run))
        self.run = run
        self.folder, self.first_step, self.last_step = folder, run.next_step, run.next_step
        self.rows = AppendOnlyFile(path)
        rate = run.workload.metric.base_metric.name
        self.curves = Curves(folder, run.recipe.examples, rate=rate)
        self.console = Console(
            run.next_step,
            run.recipe.total_steps,
            run.workload.metric,
            classes=run.recipe.data.rated_classes,
        )
        self.remaining = RemainingTime()
        self.steps: Sequence[int] = ()
        """The steps of the epoch that is being trained, from the first watched one on."""
        self.slowness = SlownessCheck()
        self._evaluation_shown = -math.inf
        self.listener = _listener.get()
        self.trackers = TrackerProcesses(folder, self.print_text)
        self.utilization: float | None = None
        """The MFU at a speed of one image per second; None if it is not known."""

    def start(self, run: LoggedRun, loader: str, *choices: str) -> None:
        """Log the run's start as a row and as console lines, and start its trackers.

        The names of the classes are written too, since the data now match those of a resumed run.
        """
        processes = describe(run.comm, run.device, threads=run.recipe.threads)
        machine = "; ".join([processes, loader, *choices])
        parts = {
            "metric": run.workload.metric.name,
            "machine": machine,
            "device": device_name(run.device),
            "processes": run.comm.world_size,
            "inputs": loader,
            "host": platform.node(),
            "commit": provenance.commit(),
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        if names := indexed_class_names(run.recipe):
            with converting_disk_full(f"the class names of the run in {self.folder}"):
                write_class_names(self.folder, names)
        self.write("start", self.first_step, **parts, **library_versions())
        self.utilization = utilization_per_speed(run.recipe, run.device, run.comm.world_size)
        reset_peak_device_memory(run.device)
        lines = [run.recipe.summary(), machine, f"run folder {self.folder}"]
        gaps = run.recipe.describe_noise_gaps(run.comm.world_size)
        lines += filter(None, [run.recipe.describe_evaluations(), gaps])
        lines += _of_speed(run.recipe, run.device)
        if self.first_step == self.console.total_steps:
            lines.append("it is complete; nothing is left to train")
        elif run.recipe.has_stopped(run.epoch_metrics):
            lines.append("it has ended early, as the recipe says; nothing is left to train")
        elif self.first_step:
            lines.append(f"resumes after step {self.first_step}")
        self.console.print_text("\n".join(lines))
        if self.damage:
            self.warn(self.first_step, self.damage)
        for tracker in run.recipe.trackers:
            self.trackers.start(tracker)

    def end(self, outcome: str) -> None:
        """Write the outcome of the run, one line of text, to TensorBoard and the console."""
        if early := self.run.recipe.describe_early_stop(self.run.epoch_metrics):
            outcome = f"{outcome}; {early}"
        self.curves.add_text("outcome", outcome)
        self.console.print_text(f"{outcome}, run folder {self.folder}")

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write a row to metrics.jsonl, console and TensorBoard; non-finite numbers are null."""
        self.last_step = step
        if kind == "train" and self.steps:
            self._update_remaining(step)
        if f"images{PER_SECOND}" in values and self.utilization:
            values["mfu"] = self.utilization * values[f"images{PER_SECOND}"]
        if kind in ("epoch", "evaluation"):
            self.remaining.end_evaluation(time.perf_counter())
        if kind == "epoch":
            with converting_disk_full(f"the record of the run in {self.folder}"):
                values |= self.run.save_artifacts(self.folder)
        row = {"kind": kind, "step": step} | {
            key: to_writable(value) for key, value in values.items()
        }
        self.rows.write(json.dumps(row).encode() + b"\n")
        self.console.show(kind, step, row)
        self.curves.draw(row)
        if self.listener is not None:
            self.listener(row)

    def watch_training(self, batches: Iterator[Any], steps: Sequence[int]) -> "TimedBatches":
        """Wrap the batches of some steps so that progress is shown about once a second."""
        # The evaluation that follows these steps may be within their epoch.
        self.steps = next(self.run.recipe.epochs_from(steps[0]))[1] if steps else ()
        self.remaining.start_training()
        return TimedBatches(batches, self._report)

    def _report(self, timed: "TimedBatches") -> None:
        """Show the progress of training on the console, and once the reason if the run is slow."""
        step, passes = self.run.next_step, self.run.micro_batches_per_step
        # Every batch but the last has been computed. With several micro-batches per step, the
        # position has a fraction; it assumes that all steps have equally many.
        of_batches = self.steps[0] + (timed.count - 1) / passes
        position = min(max(of_batches, step), step + 0.99) if passes > 1 else step
        left = self._update_remaining(position)
        self.console.show_training(position, self.run.recipe.epoch(position))
        if reason := self.slowness.reason(timed.waited, left, self.run.device.type):
            self.print_text(reason)

    def _update_remaining(self, position: float) -> float | None:
        """Update the times left of epoch and run at this step; return the run's, in seconds."""
        recipe, remaining = self.run.recipe, self.remaining
        remaining.update(time.perf_counter(), position)
        step = int(position)
        _, evaluations = recipe.work_left(step)
        steps = equal_steps_left(recipe, step)
        done = position - step
        of_epoch = remaining.seconds(len(self.steps) - bisect_left(self.steps, step) - done)
        of_run = remaining.seconds(steps - done, evaluations)
        self.console.set_time_left(of_epoch, of_run, at_most=recipe.may_stop_early)
        return of_run

    def watch_evaluation(self, split: str, done: int, passes: int) -> None:
        """Show, once a second, how many micro-batches of an evaluation set are evaluated."""
        now = time.perf_counter()
        self.remaining.start_evaluation(now)
        if done == 0:
            self._set_began = now
        if now - self._evaluation_shown >= REPORT_EVERY:
            self._evaluation_shown = now
            left = (now - self._set_began) / done * (passes - done) if done else None
            self.console.show_evaluation(split, done, passes, left)

    def warn(self, step: int, text: str) -> None:
        """Write a warning as a row of metrics.jsonl, and print it on the console."""
        self.write("warning", step, text=text)
        self.console.print_text(f"warning: {text}", logging.WARNING)

    def print_text(self, text: str) -> None:
        """Print text on the console, above the progress bar if there is one."""
        self.console.print_text(text)

    def __exit__(self, *error: object) -> None:
        """Close the log's files and end its trackers; if the run diverged, write that row first."""
        if isinstance(error[1], DivergedError):
            with converting_disk_full(f"the record of the run in {self.folder}"):
                self.run.save_artifacts(self.folder)
            self.write("diverged", self.last_step, text=str(error[1]))
            self.curves.add_text("outcome", str(error[1]))
        self.rows.close()
        self.curves.close()
        # An unfinished run is resumed later, and the remaining rows are sent then.
        self.trackers.end(WAIT if error[0] in (None, DivergedError) else 0)
        self.console.close()


class TimedBatches:
    """An iterator over training batches that counts them and measures how long its caller waits.

    `waited` is in seconds. It calls `report` with itself about once a second.
    """

    def __init__(
        self, batches: Iterator[Any], report: "Callable[[TimedBatches], None] | None" = None
    ) -> None:
        self.batches, self.waited, self.count = batches, 0.0, 0
        self.report = report
        self._due = time.perf_counter() + REPORT_EVERY if report else math.inf

    def __iter__(self) -> "TimedBatches":
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            return next(self.batches)
        finally:
            now = time.perf_counter()
            self.waited += now - begin
            self.count += 1
            if self.report and now >= self._due:
                self._due = now + REPORT_EVERY
                self.report(self)


class Meter:
    """A meter of loss, metric and speed between two readings of an epoch's cumulative sums.

    A meter of the steps after an evaluation within an epoch continues the one of the steps before
    it, without the time between them.
    """

    def __init__(
        self,
        run: LoggedRun,
        counts: MetricSumsState,
        batches: TimedBatches,
        before: "Meter | None" = None,
    ) -> None:
        self.run, self.batches = run, batches
        self.begin = self.last = self.end = self._reading(counts)
        if before:
            self.begin, self.last = (
                _delayed(reading, before.end, self.end) for reading in (before.begin, before.last)
            )

    def _reading(self, counts: MetricSumsState) -> MeterReading:
        waits = self.batches.waited, seconds_waited()
        return MeterReading(counts, self.run.next_step, time.perf_counter(), *waits)

    def stop(self) -> None:
        """Stop the clocks, at an evaluation within the epoch."""
        self.end = self._reading(self.last.sums)

    def read(self, counts: MetricSumsState) -> Row:
        """Return the values of a train row: loss, metric and speed since the last one, and memory.

        Loss and metric are NaN if the steps count no unit of the loss.
        `data_wait` is the share of this process's time that was spent waiting for data, and
        `communication_wait`, of a job with several processes, that spent waiting for the others.
        """
        before, self.last = self.last, self._reading(counts)
        seen = subtract_sums(counts, before.sums)
        metric = self.run.workload.metric.name
        own = {"loss": math.nan, metric: math.nan}
        # These steps may count nothing, such as no labelled token; the epoch has to.
        if seen["counts"][0]:
            rates = self.run.scores(seen).metrics
            own["loss"] = rates["loss"]
            # Non-finite outputs have no meaningful error rate.
            if math.isfinite(rates["loss"]):
                own[metric] = rates[metric]
        return own | noise_scale.noise_metrics(seen) | self._speed(before, self.last)

    def read_epoch(self, counts: MetricSumsState) -> Row:
        """Return the epoch's average speed and step, its shares of waiting, and the memory.

        Of processes that wait for each other in each step it has the `straggler` too, if there is
        one: a host. Then all processes call this together.
        """
        row, run = self._speed(self.begin, self._reading(counts)), self.run
        has_steps = math.isfinite(row["step_seconds"])  # none after a stop in the evaluation
        if has_steps and run.comm.world_size > 1 and run.recipe.strategy.name == "allreduce":
            waits = row["communication_wait"], row["data_wait"]
            mine = ProcessWaits(platform.node(), run.hosted_workers, *waits)
            if host := find_straggler(run.comm.gather_objects(mine)):
                row[STRAGGLER] = host
        return row

    def _speed(self, before: MeterReading, now: MeterReading) -> Row:
        steps, seconds = now.steps - before.steps, now.time - before.time
        count = int(now.sums["counts"][0] - before.sums["counts"][0])
        # A run preempted during an evaluation resumes with no step of the epoch left.
        speed = count / seconds if count else math.nan
        kind = self.run.workload.count_names[0]
        data_wait = (now.data_wait - before.data_wait) / seconds
        row = {f"{kind}{PER_SECOND}": speed, "data_wait": data_wait}
        if self.run.comm.world_size > 1:
            row["communication_wait"] = (now.process_wait - before.process_wait) / seconds
        row["step_seconds"] = seconds / steps if steps else math.nan
        return row | memory_statistics(self.run.device)


def _delayed(reading: MeterReading, stop: MeterReading, start: MeterReading) -> MeterReading:
    """Return a reading as if its clocks had not run between `stop` and `start`, of another meter.

    The waits for data are those of another iterator, and begin at 0 again.
    """
    sums, steps, *clocks = reading
    moved = (
        clock + begin - end for clock, end, begin in zip(clocks, stop[2:], start[2:], strict=True)
    )
    return MeterReading(sums, steps, *moved)


def _saved_rows(run: LoggedRun) -> list[Row]:
    """Return the rows of epochs and evaluations that the checkpoint has, in their order.

    They lack the speeds. Those of a dry run are left out, as their steps are not all of the run's.
    """
    recipe = run.recipe
    saved: list[tuple[str, int, float, dict[str, float]]] = [
        ("evaluation", step, recipe.epoch(step), metrics)
        for step, metrics in run.evaluations.items()
        if metrics
    ]
    saved += [
        ("epoch", recipe.first_step(epoch), epoch, metrics)
        for epoch, metrics in run.epoch_metrics.items()
        if metrics and not recipe.rehearse
    ]
    rows = []
    for kind, step, epoch, metrics in saved:
        lr = {"lr": recipe.lr(step - 1)} if kind == "epoch" else {}
        values = {"epoch": epoch, **lr, **metrics}
        rows.append({"kind": kind, "step": step} | {k: to_writable(v) for k, v in values.items()})
    return sorted(rows, key=_place)


def _place(row: Row) -> tuple[int, int]:
    """Return the place of a row in the file; others stand before the measurements of their step."""
    kind = row["kind"]
    return row["step"], MEASURED.index(kind) if kind in MEASURED else -1


def _drop_rows_after(
    path: Path, step: int, made: Mapping[str, Collection[int]], saved: Sequence[Row] = ()
) -> str:
    """Rewrite metrics.jsonl without rows of later steps, in one pass.

    `made` has the finished epochs and the evaluations made, by the kinds of their rows; rows of
    others are dropped too. The rows in `saved`, which are in their order, are written where they
    are missing: after a power failure the checkpoint may be newer than the rows on the disk. If
    rows follow a damaged line, the file is first copied to a backup. Returns a warning of this and
    of missing rows; else an empty text.
    """
    rows, left, lost = RowReader(path), deque(saved), 0
    warnings: list[str] = []

    def write_missing(place: tuple[int, int]) -> None:
        nonlocal lost
        while left and _place(left[0]) < place:
            file.write(json.dumps(left.popleft()).encode() + b"\n")
            lost += 1

    with atomic_write(path) as file:
        for row in rows:
            if not is_row(row):
                rows.damaged_line = rows.count
                break
            number = row.get("epoch") if row["kind"] == "epoch" else row["step"]
            if row["step"] <= step and number in made.get(row["kind"], (number,)):
                write_missing(_place(row))
                if left and _place(left[0]) == _place(row):
                    left.popleft()
                # A kill may have cut off the newline alone.
                file.write(rows.line.removesuffix(b"\n") + b"\n")
        write_missing((step + 1, 0))
        if rows.damaged_line:
            warnings.append(_copy_damaged(path, rows.damaged_line))
    if lost:
        rows_of = "1 epoch or evaluation" if lost == 1 else f"{lost} epochs and evaluations"
        warnings.append(
            f"{path} had lost the rows of {rows_of}, which are written again from the checkpoint, "
            "without speeds"
        )
    return "; ".join(warnings)


def _copy_damaged(path: Path, line: int) -> str:
    """Copy a damaged metrics.jsonl to a backup beside it, and return a warning."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    with open_regular(path) as damaged, atomic_write(aside) as file:
        shutil.copyfileobj(damaged, file)
    return (
        f"{path} is damaged in line {line}; the run continues without that line and all after "
        f"it, and the original file is now {aside}"
    )


def to_writable(value: Any) -> Any:
    """Return a value as a row has it: None for a number that is not finite, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _of_speed(recipe: Recipe, device: torch.device) -> list[str]:
    """Return console lines on faster settings for this GPU, or on a drawback of the chosen ones."""
    if device.type == "cpu":
        return []
    if not recipe.deterministic:
        return ["deterministic=false: a repeated run differs in its last bits"]
    if recipe.channels_last or recipe.compile:
        return []
    options, precisions = "channels_last=true, compile=true and larger micro-batches", "bfloat16"
    if is_nvidia(device):
        name = preset(device)
        options = f"hardware={name}, or {options}"
        precisions = "float16" if name == "v100" else "tf32 or bfloat16"
    return [
        f"faster on this GPU: {options} one by one; and precision={precisions}, which makes "
        "another run"
    ]
