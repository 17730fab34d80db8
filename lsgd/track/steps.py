"""The rows of a run as a tracker takes them: the numbers of one step after the other."""

from collections.abc import Iterator
from dataclasses import dataclass

from lsgd.recipe import Recipe
from lsgd.run.read import Run
from lsgd.run.rows import PER_SECOND, Row, moment, number, things

GROUPS = {"train": "steps", "epoch": "epochs"}
"""The kinds of rows that are sent: one is of the steps since the last row, one of an epoch."""


@dataclass(frozen=True)
class TrackedStep:
    """All numbers of one step of the run, by their names there."""

    number: int
    time: float
    """About when the step was made, in seconds since 1970: always the same for the same rows."""
    values: dict[str, float]


def tracked_steps(run: Run) -> list[TrackedStep]:
    """The steps that have rows, each with `epoch` and `examples`, which are axes for the others.

    What is no finite number is left out. The number of a finished run is at its last step.
    """
    times = dict(_times(run))
    values: dict[int, dict[str, float]] = {}
    for row in run.rows:
        if row["kind"] in GROUPS:
            step = row["step"]
            axes = {"epoch": run.recipe.epoch(step), "examples": float(run.recipe.examples(step))}
            values[step] = values.get(step, axes) | dict(_numbers(row))
    if values and run.finished:
        values[max(values)]["outcome"] = run.number
    elif values and _is_half_told(run):
        del values[max(values)]
    return [TrackedStep(step, times[step], values[step]) for step in sorted(values)]


def _numbers(row: Row) -> Iterator[tuple[str, float]]:
    for key in row.keys() - {"kind", "step", "epoch"}:
        value = number(row, key)
        if value is not None:
            yield f"{GROUPS[row['kind']]}/{key}", value


def _is_half_told(run: Run) -> bool:
    """Whether the last row is to get another at its step: that of the epoch, once it is evaluated.

    A tracker that asks for steps in their order would not take that one later.
    """
    last = [row for row in run.rows if row["kind"] in GROUPS][-1]
    _, steps = next(run.recipe.epochs_from(last["step"] - 1))
    return last["kind"] == "train" and last["step"] == steps[-1] + 1 and run.diverged is None


def _times(run: Run) -> Iterator[tuple[int, float]]:
    """Steps of the run, and about when they were made, as rows have no time of their own: those of
    the starts have one, and speeds say how long the steps since then took."""
    time, before = 0.0, 0
    for row in run.rows:
        if row["kind"] == "start":
            time, before = max(time, moment(row)), row["step"]
        elif row["kind"] in GROUPS:
            speed = number(row, things(row) + PER_SECOND)
            if speed and row["step"] > before:
                made = run.recipe.examples(row["step"]) - run.recipe.examples(before)
                time, before = time + made * _things_in_one(run.recipe) / speed, row["step"]
            yield row["step"], time


def _things_in_one(recipe: Recipe) -> int:
    """What speeds count in an example: the tokens of a window, or the example itself."""
    return recipe.data.window or 1
