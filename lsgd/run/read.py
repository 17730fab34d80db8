"""A run folder as it lies on the disk: the recipe of the run, and its rows so far.

No torch is needed to read one, so that a hundred can be read in seconds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsgd import config
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.rules.metric import FIRST_SET, METRICS, TOP1, Metric
from lsgd.run.rows import Row, damaged_line, number, read_rows, things


class NotARun(Exception):
    """A folder that no run can be read from; the message says why, without the folder's name."""


@dataclass(frozen=True)
class Run:
    """One run of a recipe, finished or not."""

    path: Path
    recipe: Recipe
    rows: list[Row]

    @property
    def epochs(self) -> dict[int, Row]:
        """The row of each epoch that has ended, by its number from 1."""
        return {row["epoch"]: row for row in self.of_kind("epoch")}

    @property
    def epoch(self) -> int:
        """The last epoch that has ended, or 0."""
        return max(self.epochs, default=0)

    @property
    def start(self) -> Row:
        """Machine and versions, as the run was last started; empty if no start has a row."""
        return next(iter(self.of_kind("start")[::-1]), {})

    @property
    def starts(self) -> list[Row]:
        """Machine and versions of each start that trained an epoch; of the last if none did."""
        trained: list[Row] = []
        latest: Row = {}
        for row in self.rows:
            if row["kind"] == "start":
                latest = row
            elif row["kind"] == "epoch" and latest not in trained[-1:]:
                trained.append(latest)
        return trained or [latest]

    @property
    def finished(self) -> bool:
        """Whether every epoch of the recipe has ended, or the run has what it was to stop at; a
        rehearsal is never finished."""
        every = set(range(1, self.recipe.epochs + 1))
        over = every <= self.epochs.keys() or self.recipe.is_over(self.epochs)
        return over and not self.recipe.rehearse

    @property
    def diverged(self) -> str | None:
        """What the run said when a loss or gradient was no longer finite; None if it did not, or
        goes on since then."""
        last = self.rows[-1] if self.rows else {}
        return str(last.get("text", "")) if last.get("kind") == "diverged" else None

    @property
    def state(self) -> str:
        """Finished, diverged, a rehearsal, or how far it has come, in words."""
        if self.recipe.rehearse:
            return "a rehearsal"
        if self.finished:
            return "finished"
        if self.diverged is not None:
            return f"diverged in epoch {self.epoch + 1} of {self.recipe.epochs}"
        return f"{len(self.epochs)} of {self.recipe.epochs} epochs done"

    @property
    def metric(self) -> Metric:
        """What the number of the run is: the rate that its start names, or a count until a rate;
        older runs name none and are of TOP1."""
        return self.recipe.number_metric(METRICS[self.start.get("metric", TOP1.name)])

    @property
    def number(self) -> float:
        """The number of the run, as its metric makes it of the epochs so far."""
        return self.metric.number(self.epochs)

    @property
    def sets(self) -> list[str]:
        """The names of the evaluation sets: the first, of which the number is, then all others."""
        ending = f"_{self.metric.name}"
        keys = [key for row in self.epochs.values() for key in row if key.endswith(ending)]
        names = dict.fromkeys([FIRST_SET, *(key.removesuffix(ending) for key in keys)])
        return [name for name in names if name != "train"]

    def number_on(self, evaluation_set: str) -> float | None:
        """The number on any evaluation set; None if the run has never been evaluated on it."""
        if evaluation_set not in self.sets:
            return None
        return self.metric.number(self.epochs, evaluation_set)

    @property
    def things(self) -> str:
        """What its speeds count, such as images; empty before the first speed is written."""
        return next((counted for row in self.rows if (counted := things(row))), "")

    def of_kind(self, kind: str) -> list[Row]:
        """The rows of this kind."""
        return [row for row in self.rows if row["kind"] == kind]


def read_run(path: Path) -> Run:
    """The run in this folder; raises NotARun if there is none that can be understood."""
    if not path.is_dir():
        raise NotARun("it is not a folder")
    if not (path / "config.yaml").exists():
        raise NotARun("it has no config.yaml")
    try:
        recipe = config.read_recipe(path / "config.yaml")
    except Refused as error:
        what, _, _ = str(error).partition("; ")  # what to write instead is no help here
        raise NotARun(f"config.yaml is of no run of this lsgd: {what}") from None
    try:
        rows = read_rows(path / "metrics.jsonl")
        line = damaged_line(path / "metrics.jsonl")
    except OSError as error:
        raise NotARun(f"metrics.jsonl cannot be read ({error.strerror})") from None
    if line:
        raise NotARun(f"line {line} of metrics.jsonl is damaged")
    if not all(map(_written_by_lsgd, rows)):
        raise NotARun("metrics.jsonl has rows that lsgd did not write")
    run = Run(path, recipe, rows)
    name = run.start.get("metric", TOP1.name)
    if name not in list(METRICS):
        raise NotARun(
            f"metrics.jsonl is of the metric {name}, and this lsgd knows {', '.join(METRICS)}"
        )
    keys = [f"{evaluation_set}_{run.metric.name}" for evaluation_set in run.sets]
    for epoch, row in run.epochs.items():
        needed = [key for key in keys if key in row or epoch == recipe.epochs]
        for key in needed:
            if number(row, key) is None:
                raise NotARun(f"metrics.jsonl has no number for {key} of epoch {epoch}")
    if run.epoch > recipe.epochs:
        raise NotARun(f"metrics.jsonl has epoch {run.epoch} and the recipe {recipe.epochs}")
    return run


def _written_by_lsgd(row: Any) -> bool:
    if not isinstance(row, dict) or not {"kind", "step"} <= row.keys():
        return False
    return row["kind"] != "epoch" or isinstance(row.get("epoch"), int)


def trial_folder(recipe: Recipe) -> Path:
    """Where a study keeps the run of this recipe and seed: `runs/trials/NAME-seedS-FINGERPRINT`.

    A run that several studies have in common is trained once, by the first of them.
    """
    return Path("runs/trials") / f"{recipe.name}-seed{recipe.seed}-{recipe.fingerprint[:8]}"
