"""The metrics of a run step by step, as a tracker receives them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lsgd.run.read import Run
from lsgd.run.rows import PER_SECOND, Row, finite_number, speed_unit, start_time

GROUPS = {"train": "steps", "evaluation": "evaluations", "epoch": "epochs"}
"""The prefix of metrics by kind of row: of the steps since the last row, of an evaluation within an
epoch, or of an epoch."""


@dataclass(frozen=True)
class TrackedStep:
    """The metrics of one training step, by their names at the experiment tracker."""

    number: int
    time: float
    """The estimated time of the step, in seconds since 1970; a pure function of the rows."""
    values: dict[str, float]


def tracked_steps(run: Run) -> list[TrackedStep]:
    """Convert a run's rows of metrics.jsonl into the metrics of each step for a tracker.

    Each step has `epoch` and `examples` as axes. Only finite numbers are included. The last step of
    a finished run has its final metric, which is not finite if its target was not reached.
    """
    times = dict(_times(run))
    values: dict[int, dict[str, float]] = {}
    for row in run.rows:
        if row["kind"] in GROUPS:
            step = row["step"]
            axes = {"epoch": run.recipe.epoch(step), "examples": float(run.recipe.examples(step))}
            values[step] = values.get(step, axes) | dict(_numbers(row))
    if values and run.finished:
        if math.isfinite(run.final_metric):
            values[max(values)]["outcome"] = run.final_metric
    elif values and _awaits_evaluation(run):
        del values[max(values)]
    return [TrackedStep(step, times[step], values[step]) for step in sorted(values)]


def _numbers(row: Row) -> Iterator[tuple[str, float]]:
    for key in row.keys() - {"kind", "step", "epoch"}:
        value = finite_number(row, key)
        if value is not None:
            yield f"{GROUPS[row['kind']]}/{key}", value


def _awaits_evaluation(run: Run) -> bool:
    """Return whether a run has trained up to an evaluation whose metrics it has not written yet.

    A tracker that requires steps in order would reject it if the step had been sent before.
    """
    last = [row for row in run.rows if row["kind"] in GROUPS][-1]
    epoch, steps = next(run.recipe.epochs_from(last["step"] - 1))
    places = [*run.recipe.evaluation_places(epoch), steps[-1] + 1]
    return last["kind"] == "train" and last["step"] in places and run.diverged is None


def _times(run: Run) -> Iterator[tuple[int, float]]:
    """Estimate the time of each step that has a row of metrics; yield (step, seconds since 1970).

    Only rows of starts have a time; a row's seconds per step give the duration of the steps before
    it.
    """
    time, before = 0.0, 0
    for row in run.rows:
        if row["kind"] == "start":
            time, before = max(time, start_time(row)), row["step"]
        elif row["kind"] in GROUPS:
            steps = row["step"] - before
            seconds = finite_number(row, "step_seconds")
            speed = finite_number(row, speed_unit(row) + PER_SECOND)
            if seconds and steps > 0:
                time, before = time + steps * seconds, row["step"]
            elif speed and steps > 0:  # of an older run
                made = run.recipe.examples(row["step"]) - run.recipe.examples(before)
                # An example of text is a window of tokens, by which the speed counts.
                units = made * (run.recipe.data.window or 1)
                time, before = time + units / speed, row["step"]
            yield row["step"], time
