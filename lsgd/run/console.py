"""What a run shows while it trains: a progress bar on a terminal or in a notebook, else lines."""

import math
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from tqdm import tqdm

from lsgd.rules.metric import FIRST_SET, METRICS, Metric
from lsgd.run.remaining import duration
from lsgd.run.rows import PER_SECOND, Row, things

QUIET = 10.0
"""Seconds without a line after which output that is no terminal gets a line of progress."""
WORTH_SAYING = 10.0
"""The shortest remaining time, in seconds, that is printed."""


class Console:
    """A progress bar with the time left on a terminal or in a notebook, plain lines elsewhere."""

    def __init__(self, first_step: int, total_steps: int, metric: Metric) -> None:
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            # The time left is the run's own estimate, which knows of evaluations.
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]",
            disable=not _can_redraw(sys.stderr),
        )
        self.total_steps = total_steps
        self.metric = metric
        self.time_left = ""
        """The time left of the epoch and of the run, as it is printed; empty while unknown."""
        self._latest = ""
        """The last row of a step, as the bar shows it."""
        self._printed_step = first_step
        self._quiet_since = time.monotonic()

    def show(self, kind: str, step: int, row: Row) -> None:
        """Show a row: epochs as lines, steps as the bar's, or as lines where there is no bar."""
        if kind == "train":
            self._latest = (
                f"lr {_shown(row, 'lr'):.4g}  loss {_shown(row, 'loss'):.3f}  {_speed(row)}"
            )
            if self.bar.disable:
                self._print_step(step, row["epoch"], self._latest)
            self._move_bar(step)
        if kind == "epoch":
            self.say(f"epoch {row['epoch']}: {', '.join([*self._rates(row), _speed(row)])}")

    def _rates(self, row: Row) -> Iterator[str]:
        """The metric, then the other rates of all evaluation sets but their losses, in words."""
        metric = self.metric
        trained = f"(train {metric.amount(_shown(row, f'train_{metric.name}'))})"
        if metric.key in row:
            yield f"{metric.named(_shown(row, metric.key))} {trained}"
        else:
            yield f"not evaluated {trained}"
        for key in row:
            evaluation_set, _, name = key.partition("_")
            if evaluation_set == "train" or name in ("", "loss") or name not in METRICS:
                continue
            rate = METRICS[name]
            if evaluation_set != FIRST_SET:
                yield f"{rate.on(evaluation_set)} {rate.amount(_shown(row, key))}"
            elif key != metric.key:
                yield rate.named(_shown(row, key))

    def show_training(self, position: float, epoch: float) -> None:
        """Show how far training is, at a step of the run with its fraction and at an epoch."""
        self._move_bar(int(position))
        if self._is_due():
            step, share = int(position), position % 1
            # Only a step that takes longer than this is worth its share.
            slow = share > 0 and step == self._printed_step
            self._print_step(step, epoch, f"and {100 * share:.0f} % of the next" if slow else "")

    def show_evaluation(self, split: str, done: int, passes: int, seconds: float | None) -> None:
        """Show how many passes of an evaluation set are done, and the seconds that are left."""
        text = f"evaluating {split}: pass {done}/{passes}"
        if seconds is not None and seconds >= WORTH_SAYING:
            text += f"  {duration(seconds)} left"
        self.bar.set_postfix_str(text)
        if self._is_due():
            self._print(text)

    def set_time_left(self, of_epoch: float | None, of_run: float | None, *, at_most: bool) -> None:
        """Set the seconds that are left, to be shown from now on; a run may end before its time."""
        parts = [
            f"{limit}{duration(seconds)} left of the {name}"
            for name, seconds, limit in (
                ("epoch", of_epoch, ""),
                ("run", of_run, "at most " if at_most else ""),
            )
            if seconds is not None and seconds >= WORTH_SAYING
        ]
        self.time_left = ", ".join(parts)

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        self.bar.write(text, file=sys.stdout)
        sys.stdout.flush()
        self._quiet_since = time.monotonic()

    def close(self) -> None:
        """Close the bar, which stays on the terminal."""
        self.bar.close()

    def _move_bar(self, step: int) -> None:
        self.bar.set_postfix_str("  ".join(filter(None, (self._latest, self.time_left))), False)
        self.bar.update(step - self.bar.n)

    def _print_step(self, step: int, epoch: float, text: str) -> None:
        begin = f"step {step}/{self.total_steps}  epoch {epoch:.2f}"
        self._print("  ".join(filter(None, (begin, text, self.time_left))))
        self._printed_step = step

    def _print(self, text: str) -> None:
        print(text, flush=True)
        self._quiet_since = time.monotonic()

    def _is_due(self) -> bool:
        """Return whether plain lines are wanted, and none has been printed for a while."""
        return self.bar.disable and time.monotonic() - self._quiet_since >= QUIET


def _can_redraw(stream: TextIO) -> bool:
    """Whether a line can be drawn over itself: a notebook can, and says that it is no terminal."""
    return stream.isatty() or type(stream).__module__.startswith("ipykernel.")


def _speed(row: Row) -> str:
    counted = things(row)
    speed = _shown(row, counted + PER_SECOND)
    # Of an epoch whose steps were all made before the run was resumed.
    return "no step timed" if math.isnan(speed) else f"{speed:.0f} {counted}/s"


def _shown(row: Row, key: str) -> float:
    """The number under this key; null prints as nan."""
    return math.nan if row[key] is None else float(row[key])
