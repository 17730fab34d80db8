"""The console output of a training run: a progress bar in a terminal or notebook, else lines."""

import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

from tqdm import tqdm

from lsgd import messages
from lsgd.rules.metric import MAIN_SET, METRICS, Metric
from lsgd.run.remaining import duration
from lsgd.run.rows import PER_SECOND, WAITS, Row, speed_unit

QUIET = 10.0
"""The seconds without output after which a line of progress is printed where there is no bar."""
WORTH_SAYING = 10.0
"""The shortest remaining time, in seconds, that is printed."""


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar without tqdm's thread, which would outlive the run."""

    monitor_interval = 0


class Console:
    """The printer of a run's progress: a bar in a terminal or a notebook, else plain lines."""

    def __init__(
        self, first_step: int, total_steps: int, metric: Metric, *, classes: int | None = None
    ) -> None:
        """Create the printer of a run; `classes` hides metrics that are always 0."""
        self.bar = _Bar(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            miniters=1,
            # The time left is the run's own estimate, which includes evaluations.
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
            disable=not (_can_redraw(sys.stderr) and messages.LOGGER.isEnabledFor(logging.INFO)),
        )
        self.total_steps = total_steps
        self.metric, self.classes = metric, classes
        self.time_left = ""
        """The time left of the epoch and of the run, as printed; empty while unknown."""
        self._latest = ""
        """The text of the last training row, as the bar shows it."""
        self._printed_step = first_step
        self._quiet_since = time.monotonic()

    def show(self, kind: str, step: int, row: Row) -> None:
        """Show a row as a line; a training row in the progress bar, if there is one."""
        if kind == "train":
            values = f"lr {_shown(row, 'lr'):.4g}", f"loss {_shown(row, 'loss'):.3f}"
            self._latest = "  ".join([*values, *_speed(row)])
            if self.bar.disable:
                self._print_step(step, row["epoch"], self._latest)
            self._move_bar(step)
        if kind == "epoch":
            self._move_bar(step)  # it may still show the evaluation, and an earlier step
            self.print_text(f"epoch {row['epoch']}: {', '.join([*self._rates(row), *_speed(row)])}")
        if kind == "evaluation":
            self._move_bar(step)
            self.print_text(f"epoch {row['epoch']:.4g}: {', '.join(self._rates(row))}")

    def _rates(self, row: Row) -> Iterator[str]:
        """Yield, as text, a row's main metric with that of training, if any, then the others."""
        metric = self.metric
        main = "not evaluated"
        if metric.key in row:
            main = metric.format_labelled(_shown(row, metric.key))
        if (trained := f"train_{metric.name}") in row:
            main += f" (train {metric.format_value(_shown(row, trained))})"
        yield main
        for key in row:
            evaluation_set, _, name = key.partition("_")
            if evaluation_set == "train" or name in ("", "loss") or name not in METRICS:
                continue
            rate = METRICS[name]
            if rate.is_always_0(self.classes):
                continue
            if evaluation_set != MAIN_SET:
                yield f"{rate.label_on(evaluation_set)} {rate.format_value(_shown(row, key))}"
            elif key != metric.key:
                yield rate.format_labelled(_shown(row, key))

    def show_training(self, position: float, epoch: float) -> None:
        """Show how far training is: in steps of the run and in epochs, both with fractions."""
        self._move_bar(int(position))
        if self._is_due():
            step, share = int(position), position % 1
            # The fraction is shown only for a step that takes longer than QUIET seconds.
            slow = share > 0 and step == self._printed_step
            self._print_step(step, epoch, f"and {100 * share:.0f} % of the next" if slow else "")

    def show_evaluation(self, split: str, done: int, passes: int, seconds: float | None) -> None:
        """Show how many micro-batches of an evaluation set are evaluated, and the seconds left."""
        text = f"evaluating {split}: batch {done}/{passes}"
        if seconds is not None and seconds >= WORTH_SAYING:
            text += f"  {duration(seconds)} left"
        self.bar.set_postfix_str(text)
        if self._is_due():
            self._print(text)

    def set_time_left(self, of_epoch: float | None, of_run: float | None, *, at_most: bool) -> None:
        """Set the time left of epoch and run to show; `at_most` marks a run that may stop early."""
        parts = [
            f"{limit}{duration(seconds)} left of the {name}"
            for name, seconds, limit in (
                ("epoch", of_epoch, ""),
                ("run", of_run, "at most " if at_most else ""),
            )
            if seconds is not None and seconds >= WORTH_SAYING
        ]
        self.time_left = ", ".join(parts)

    def print_text(self, text: str, level: int = logging.INFO) -> None:
        """Print text on a line of its own, above the progress bar if there is one."""
        with self.bar.external_write_mode(sys.stdout):
            messages.show(text, level=level)
        self._quiet_since = time.monotonic()

    def close(self) -> None:
        """Close the progress bar, whose last state remains on the terminal."""
        self.bar.close()

    def _move_bar(self, step: int) -> None:
        self.bar.set_postfix_str("  ".join(filter(None, (self._latest, self.time_left))), False)
        self.bar.update(step - self.bar.n)

    def _print_step(self, step: int, epoch: float, text: str) -> None:
        begin = f"step {step}/{self.total_steps}  epoch {epoch:.2f}"
        self._print("  ".join(filter(None, (begin, text, self.time_left))))
        self._printed_step = step

    def _print(self, text: str) -> None:
        messages.show(text)
        self._quiet_since = time.monotonic()

    def _is_due(self) -> bool:
        """Return whether to print a progress line: no bar, and no output for QUIET seconds."""
        return self.bar.disable and time.monotonic() - self._quiet_since >= QUIET


def _can_redraw(stream: TextIO | None) -> bool:
    """Return whether an output stream can redraw a line, as a terminal or a notebook can."""
    # A program without a console has none, and a log of its own may lack isatty, or be closed.
    with suppress(AttributeError, ValueError):
        if stream.isatty():  # type: ignore[union-attr]
            return True
    return type(stream).__module__.startswith("ipykernel.")


def _speed(row: Row) -> Iterator[str]:
    """Yield, as text, the speed of a metrics.jsonl row and what share of its time was waiting."""
    counted = speed_unit(row)
    speed = _shown(row, counted + PER_SECOND)
    if math.isnan(speed):
        # All steps of the epoch were made before the run was resumed, or they counted nothing.
        yield "no step timed" if row.get("step_seconds") is None else f"0 {counted}/s"
        return
    yield f"{speed:.0f} {counted}/s"
    for key in WAITS:
        if key in row:
            yield f"{key.replace('_', ' ')} {100 * _shown(row, key):.0f} %"


def _shown(row: Row, key: str) -> float:
    """Return the number under this key of a metrics.jsonl row; nan where the row has null."""
    return math.nan if row[key] is None else float(row[key])
