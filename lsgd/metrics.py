"""What a run writes down: rows of JSON, the same as TensorBoard curves, and a progress bar.

Only process 0 has a log; after a resume no row is there twice.
"""

import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import lsgd
from lsgd.errors import FULL
from lsgd.files import whole
from lsgd.tally import difference, scores

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Row = dict[str, Any]
State = dict[str, Tensor]
"""Of a Tally, summed over the processes."""
Reading = tuple[State, float, float]
"""Counts, the time in seconds, and the seconds waited for data until then."""


class Log(Protocol):
    """Where rows of metrics go."""

    def start(self, summary: str, machine: str, folder: Path) -> None:
        """What is about to run, and where."""

    def end(self, result: str) -> None:
        """What came out, in a line."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One row; `step` counts the steps of the run made so far."""

    def warn(self, step: int, text: str) -> None:
        """A sentence about what went wrong and does not end the run, as a row and a line."""

    def __enter__(self) -> Self:
        """Itself."""

    def __exit__(self, *error: object) -> None:
        """Finish what is being written."""


def open_log(rank: int, folder: Path, first_step: int, total_steps: int, epochs: int) -> Log:
    """The log of the process with this rank, for a run that goes on after `first_step` steps and
    has made and evaluated so many epochs."""
    if rank > 0:
        return SilentLog()
    return RunLog(folder, first_step=first_step, total_steps=total_steps, epochs=epochs)


class SilentLog:
    """The log of all processes but the first."""

    def start(self, summary: str, machine: str, folder: Path) -> None:
        """See Log."""

    def end(self, result: str) -> None:
        """See Log."""

    def write(self, kind: str, step: int, **values: Any) -> None:
        """See Log."""

    def warn(self, step: int, text: str) -> None:
        """See Log."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """See Log."""


class RunLog:
    """The log of a run folder: metrics.jsonl, TensorBoard's event files, and lines or a bar.

    Rows of steps after `first_step`, and of more epochs than so many, are dropped first: they are
    of a run that did not live to save them in a checkpoint, and will be made again.
    """

    def __init__(self, folder: Path, *, first_step: int, total_steps: int, epochs: int) -> None:
        # Imported here, since only one process of a job and no other tool needs it.
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        _drop_rows_after(path, first_step, epochs)
        self.first_step = first_step
        self.file = path.open("ab", buffering=0)
        self.unwritten = b""
        """Rows that found the disk full; they are written once there is space again."""
        self.curves: SummaryWriter | None = SummaryWriter(
            str(folder / "tensorboard"), purge_step=first_step + 1
        )
        self.screen = Screen(first_step, total_steps)

    def start(self, summary: str, machine: str, folder: Path) -> None:
        """See Log; the versions that count are written down too."""
        versions = {module.__name__: module.__version__ for module in (lsgd, torch, np)}
        self.write(
            "start", self.first_step, machine=machine, host=platform.node(), time=_now(), **versions
        )
        lines = [summary, machine, f"run folder {folder}"]
        if self.first_step == self.screen.total_steps:
            lines.append("it is complete: nothing is left to train")
        elif self.first_step:
            lines.append(f"resumes after step {self.first_step}")
        self.screen.say("\n".join(lines))

    def end(self, result: str) -> None:
        """See Log."""
        self.screen.say(result)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """See Log; what is not a finite number is written as null and drawn nowhere."""
        row = {"kind": kind, "step": step} | {
            key: _writable(value) for key, value in values.items()
        }
        self.unwritten += json.dumps(row).encode() + b"\n"
        with _unless_full():
            self._write_out()
        self.screen.show(kind, step, row)
        if self.curves:
            self._draw(self.curves, step, row)

    def _write_out(self) -> None:
        while self.unwritten:
            self.unwritten = self.unwritten[self.file.write(self.unwritten) :]

    def _draw(self, curves: "SummaryWriter", step: int, row: Row) -> None:
        self.curves = None
        with _unless_full():
            for key, value in row.items():
                if key not in ("kind", "step") and isinstance(value, int | float):
                    curves.add_scalar(f"{row['kind']}/{key}", value, step)
            # A row of a step that a checkpoint has made good must not die with the process.
            curves.flush()
            self.curves = curves
        if self.curves is None:
            # A writer of tensorboard that has failed once cannot go on.
            self.warn(
                step,
                f"no space left for {curves.log_dir}: TensorBoard's curves end here, and go on "
                "after the next resume; metrics.jsonl gets its rows once there is space",
            )

    def warn(self, step: int, text: str) -> None:
        """See Log."""
        self.write("warning", step, text=text)
        self.screen.say(f"warning: {text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """See Log."""
        with _unless_full():
            self._write_out()
        self.file.close()
        if self.curves:
            self.curves.close()
        self.screen.close()


class Screen:
    """A progress bar with the time left on a terminal, plain lines elsewhere."""

    def __init__(self, first_step: int, total_steps: int) -> None:
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )
        self.total_steps = total_steps

    def show(self, kind: str, step: int, row: Row) -> None:
        """Show a row: epochs as lines, steps as the bar's, or as lines where there is no bar."""
        if kind == "train":
            text = "lr {lr:.4g}  loss {loss:.3f}  {images_per_second:.0f} images/s".format_map(
                _Shown(row)
            )
            if self.bar.disable:
                print(
                    f"step {step}/{self.total_steps}  epoch {row['epoch']:.2f}  {text}", flush=True
                )
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step - self.bar.n)
        if kind == "epoch":
            line = (
                "epoch {epoch}: top-1 error {val_top1_error:.2f} % "
                "(train {train_top1_error:.2f} %), top-5 error {val_top5_error:.2f} %, "
                "{images_per_second:.0f} images/s"
            ).format_map(_Shown(row))
            self.say(line)

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        self.bar.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self.bar.close()


class Timed:
    """An iterator that knows how long it has kept its caller waiting, in seconds."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches, self.waited = batches, 0.0

    def __iter__(self) -> "Timed":
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            return next(self.batches)
        finally:
            self.waited += time.perf_counter() - begin


class Meter:
    """Turns counts of an epoch into rates since the last reading."""

    def __init__(self, counts: State, batches: Timed) -> None:
        self.batches = batches
        self.begin = self.last = (counts, time.perf_counter(), batches.waited)

    def read(self, counts: State) -> Row:
        """Loss, error and speed since the last reading; data_wait is this process's."""
        before, self.last = self.last, (counts, time.perf_counter(), self.batches.waited)
        seen = scores(difference(counts, before[0]))
        return {"loss": seen.loss, "top1_error": seen.top1_error, **_speed(before, self.last)}

    def whole(self, counts: State) -> Row:
        """Speed since the meter was made."""
        return _speed(self.begin, (counts, time.perf_counter(), self.batches.waited))


def _speed(before: Reading, now: Reading) -> Row:
    seconds = now[1] - before[1]
    images = int(now[0]["counts"][0] - before[0]["counts"][0])
    # A run that had to leave in an evaluation resumes with no image left of the epoch.
    speed = images / seconds if images else math.nan
    return {"images_per_second": speed, "data_wait": (now[2] - before[2]) / seconds}


class _Shown(dict[str, Any]):
    """A row in which null prints as nan."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return math.nan if value is None else value


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl; a last line that a kill cut short is left out."""
    rows = []
    for line in (
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    ):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _drop_rows_after(path: Path, step: int, epochs: int) -> None:
    rows = [row for row in read_rows(path) if row["step"] <= step]
    for late in [row for row in rows if row["kind"] == "epoch"][epochs:]:
        rows.remove(late)
    with whole(path) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@contextmanager
def _unless_full() -> Iterator[None]:
    """Go on without what finds the disk full."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise


def _writable(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
