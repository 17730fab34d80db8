"""What a run writes down: rows of JSON, the same as TensorBoard's curves, and lines or a bar.

Only process 0 has a log; after a resume no row is there twice.
"""

import json
import math
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch

import lsgd
from lsgd.comm import Comm, describe
from lsgd.errors import Diverged
from lsgd.files import Appended, whole
from lsgd.job.device import device_name, preset
from lsgd.recipe import Recipe
from lsgd.rules import noise
from lsgd.rules.metric import Metric
from lsgd.run import provenance
from lsgd.run.console import Console
from lsgd.run.remaining import RemainingTime
from lsgd.run.rows import PER_SECOND, Row, damaged_line, read_rows
from lsgd.run.slowness import SlownessCheck
from lsgd.run.trackers import WAIT, Followers
from lsgd.tally import Scores, State, difference

REPORT_EVERY = 1.0
"""Seconds between two reports of how far training or an evaluation is."""

_listener: ContextVar[Callable[[Row], object] | None] = ContextVar("_listener", default=None)


@contextmanager
def heard_by(listener: Callable[[Row], object] | None) -> Iterator[None]:
    """Within this context whoever opens a log hands each row to the listener too, once it is
    written; what the listener raises ends the run."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


Reading = tuple[State, float, float]
"""Counts, the time in seconds, and the seconds waited for data until then."""


class Counting(Protocol):
    """What a log has to know of a workload: what is counted, and what the run's number is."""

    @property
    def metric(self) -> Metric:
        """The rate that the number of the run is made of."""

    @property
    def counts(self) -> tuple[str, ...]:
        """The names of what is counted, that of the speed first."""


class Progress(Protocol):
    """What a log has to know of a run: how far it has come, and on what; a Learner has it."""

    recipe: Recipe
    comm: Comm
    device: torch.device
    rates: dict[int, dict[str, float]]

    @property
    def workload(self) -> Counting:
        """The workload of the run."""

    @property
    def next_step(self) -> int:
        """The next step of the run."""

    @property
    def passes_per_step(self) -> int:
        """The number of passes that this process makes in a full step."""

    def scores(self, counted: State) -> Scores:
        """What some counts come to."""

    def keep(self, folder: Path) -> dict[str, str]:
        """Write down in the run folder what else is recorded of the run; return it for the row."""


class Log:
    """The log of all processes but the first, which write nothing; RunLog is that of the first."""

    def start(self, run: Progress, loader: str, *choices: str) -> None:
        """Write what is about to run, on what, with which loader, and what `auto` has come to."""

    def end(self, outcome: str) -> None:
        """Write the outcome of the run, one line."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write one row; `step` counts the steps of the run made so far."""

    def watch_training(self, batches: Iterator[Any], steps: Sequence[int]) -> "Timed":
        """Return the batches of these steps of one epoch, timed; their progress is shown."""
        return Timed(batches)

    def watch_evaluation(self, split: str, done: int, passes: int) -> None:
        """Show that so many passes over an evaluation set are done, on this process."""

    def warn(self, step: int, text: str) -> None:
        """Write a sentence about a fault that does not end the run, as a row and a line."""

    def say(self, text: str) -> None:
        """Print lines for people, without a row."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files of the log, if it has any."""


def open_log(run: Progress, folder: Path) -> Log:
    """The log of this process, for a run that goes on from here in its folder."""
    return RunLog(run, folder) if run.comm.rank == 0 else Log()


class RunLog(Log):
    """The log of a run folder: metrics.jsonl, TensorBoard's event file, and lines or a bar.

    Rows of steps that are still to be made, and of epochs that have not ended, are dropped first:
    their steps are in no checkpoint and will be made again. Rows behind a damaged line are dropped
    too, once the file has been copied aside. What meets a full disk is written once there is space
    again.
    """

    def __init__(self, run: Progress, folder: Path) -> None:
        # Imported here, since only one process of a job and no other tool needs TensorBoard.
        from lsgd.run.curves import Curves

        path = folder / "metrics.jsonl"
        self.damage = _set_damaged_aside(path)
        rows = _drop_rows_after(path, run.next_step, run.rates)
        self.run = run
        self.folder, self.first_step, self.last_step = folder, run.next_step, run.next_step
        self.rows = Appended(path)
        self.curves = Curves(folder, rows, run.recipe.examples)
        self.console = Console(run.next_step, run.recipe.total_steps, run.workload.metric)
        self.remaining = RemainingTime()
        self.steps: Sequence[int] = ()
        """The steps of the epoch that is trained."""
        self.slowness = SlownessCheck()
        self._evaluation_shown = -math.inf
        self.listener = _listener.get()
        self.followers = Followers(folder, self.say)

    def start(self, run: Progress, loader: str, *choices: str) -> None:
        """Write down recipe, machine, host, commit and versions, as a row and as lines."""
        machine = "; ".join([describe(run.comm, run.device), loader, *choices])
        parts = {
            "metric": run.workload.metric.name,
            "machine": machine,
            "device": device_name(run.device),
            "processes": run.comm.world_size,
            "inputs": loader,
            "host": platform.node(),
            "commit": provenance.commit(),
            "time": _now(),
        }
        versions = {module.__name__: module.__version__ for module in (lsgd, torch, np)}
        self.write("start", self.first_step, **parts, **versions)
        lines = [run.recipe.summary(), machine, f"run folder {self.folder}"]
        lines += _of_speed(run.recipe, run.device)
        if self.first_step == self.console.total_steps or run.recipe.is_over(run.rates):
            lines.append("it is complete: nothing is left to train")
        elif self.first_step:
            lines.append(f"resumes after step {self.first_step}")
        self.console.say("\n".join(lines))
        if self.damage:
            self.warn(self.first_step, self.damage)
        for tracker in run.recipe.trackers:
            self.followers.start(tracker)

    def end(self, outcome: str) -> None:
        """Write the outcome into TensorBoard, and print it."""
        self.curves.say("outcome", outcome)
        self.console.say(f"{outcome}, run folder {self.folder}")

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write a row; what is not a finite number is written as null and drawn nowhere."""
        self.last_step = step
        if kind == "train" and self.steps:
            self._update_remaining(step)
        if kind == "epoch":
            self.remaining.end_evaluation(time.perf_counter())
            values |= self.run.keep(self.folder)
        row = {"kind": kind, "step": step} | {
            key: _writable(value) for key, value in values.items()
        }
        self.rows.write(json.dumps(row).encode() + b"\n")
        self.console.show(kind, step, row)
        self.curves.draw(row)
        if self.listener is not None:
            self.listener(row)

    def watch_training(self, batches: Iterator[Any], steps: Sequence[int]) -> "Timed":
        """Return the batches, whose passage is reported to the console about once a second."""
        self.steps = steps
        self.remaining.start_epoch()
        return Timed(batches, self._report)

    def _report(self, timed: "Timed") -> None:
        """Show where in the epoch training is, as the last batch has been handed over."""
        step, passes = self.run.next_step, self.run.passes_per_step
        # All batches but the last have been computed with, in steps of equal numbers of passes;
        # other steps move only as a whole.
        of_batches = self.steps[0] + (timed.count - 1) / passes
        position = min(max(of_batches, step), step + 0.99) if passes > 1 else step
        left = self._update_remaining(position)
        self.console.show_training(position, self.run.recipe.epoch(position))
        if reason := self.slowness.reason(timed.waited, left, self.run.device.type):
            self.say(reason)

    def _update_remaining(self, position: float) -> float | None:
        """Estimate the time left from this position on; returns the seconds of the run."""
        recipe, remaining = self.run.recipe, self.remaining
        remaining.update(time.perf_counter(), position)
        step = int(position)
        steps, evaluations = recipe.work_left(step)
        done = position - step
        of_epoch = remaining.seconds(len(self.steps) - bisect_left(self.steps, step) - done)
        of_run = remaining.seconds(steps - done, evaluations)
        self.console.set_time_left(of_epoch, of_run, at_most=recipe.metric.stop)
        return of_run

    def watch_evaluation(self, split: str, done: int, passes: int) -> None:
        """Show the progress of an evaluation, about once a second."""
        now = time.perf_counter()
        self.remaining.start_evaluation(now)
        if done == 0:
            self._set_began = now
        if now - self._evaluation_shown >= REPORT_EVERY:
            self._evaluation_shown = now
            left = (now - self._set_began) / done * (passes - done) if done else None
            self.console.show_evaluation(split, done, passes, left)

    def warn(self, step: int, text: str) -> None:
        """Write the sentence as a row, and print it."""
        self.write("warning", step, text=text)
        self.say(f"warning: {text}")

    def say(self, text: str) -> None:
        """Print lines above the progress bar, or as plain lines."""
        self.console.say(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Finish all files; that a run has diverged is a result, and a row."""
        if isinstance(error[1], Diverged):
            self.run.keep(self.folder)
            self.write("diverged", self.last_step, text=str(error[1]))
            self.curves.say("outcome", str(error[1]))
        self.rows.close()
        self.curves.close()
        # A run that is not through goes on later, and the rest is sent then.
        self.followers.end(WAIT if error[0] in (None, Diverged) else 0)
        self.console.close()


class Timed:
    """An iterator over batches that knows how many it has handed over, and how long it has kept its
    caller waiting, in seconds; it calls `report` with itself about once a second."""

    def __init__(
        self, batches: Iterator[Any], report: "Callable[[Timed], None] | None" = None
    ) -> None:
        self.batches, self.waited, self.count = batches, 0.0, 0
        self.report = report
        self._due = time.perf_counter() + REPORT_EVERY if report else math.inf

    def __iter__(self) -> "Timed":
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
    """Turns the counts of an epoch of a run into rates since the last reading."""

    def __init__(self, run: Progress, counts: State, batches: Timed) -> None:
        self.run, self.batches = run, batches
        self.begin = self.last = (counts, time.perf_counter(), batches.waited)

    def read(self, counts: State) -> Row:
        """Loss, metric, noise scale if it is measured, and speed since the last reading; data_wait
        is this process's."""
        before, self.last = self.last, (counts, time.perf_counter(), self.batches.waited)
        seen = difference(counts, before[0])
        rates, metric = self.run.scores(seen).rates, self.run.workload.metric.name
        own = {"loss": rates["loss"], metric: rates[metric], **noise.rates(seen)}
        return own | self._speed(before, self.last)

    def whole(self, counts: State) -> Row:
        """Speed and data_wait since the meter was made."""
        return self._speed(self.begin, (counts, time.perf_counter(), self.batches.waited))

    def _speed(self, before: Reading, now: Reading) -> Row:
        seconds = now[1] - before[1]
        count = int(now[0]["counts"][0] - before[0]["counts"][0])
        # A run that had to leave in an evaluation resumes with nothing left of the epoch.
        speed = count / seconds if count else math.nan
        kind = self.run.workload.counts[0]
        return {f"{kind}{PER_SECOND}": speed, "data_wait": (now[2] - before[2]) / seconds}


def _set_damaged_aside(path: Path) -> str:
    """Copy the file if rows stand behind a damaged line; returns a sentence about it, or none."""
    line = damaged_line(path)
    if line is None:
        return ""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    with whole(aside) as file:
        file.write(path.read_bytes())
    return (
        f"{path} is damaged in line {line}; it goes on without that line and all behind it, and "
        f"the file as it was is now {aside}"
    )


def _drop_rows_after(path: Path, step: int, epochs: Collection[int]) -> list[Row]:
    """Rewrite the file without rows of later steps and of other epochs; returns those that stay."""
    rows = [
        row
        for row in read_rows(path)
        if row["step"] <= step and (row["kind"] != "epoch" or row.get("epoch") in epochs)
    ]
    with whole(path) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    return rows


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _writable(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _of_speed(recipe: Recipe, device: torch.device) -> list[str]:
    """What would be faster on this device by a word, and what speed has been paid for with."""
    if device.type == "cpu":
        return []
    if not recipe.deterministic:
        return ["deterministic=false: the same run again differs in its last bits"]
    if recipe.channels_last or recipe.compile:
        return []
    return [
        f"faster on this GPU: hardware={preset(device)}, or channels_last=true, compile=true and "
        "larger passes one by one; and precision=tf32 or bfloat16, which makes another run"
    ]
