"""The reader of a run folder: the recipe of the run, and its rows so far, without torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsgd import config
from lsgd.errors import PreemptedError, UsageError
from lsgd.recipe import Recipe
from lsgd.rules.metric import MAIN_SET, METRICS, TOP1, Metric, TimeToTarget, named_metric
from lsgd.run.rows import MEASURED, Row, RowReader, finite_number, is_row, read_rows, speed_unit

SUPERVISOR_LOG = "supervise.log"
"""The file in the run folder in which the supervisor logs every start and its end."""


class NotARunError(Exception):
    """The error for a folder without a readable training run; its message omits the path."""


@dataclass(frozen=True)
class Run:
    """A training run read from its folder, finished or not: its recipe and metrics.jsonl rows."""

    path: Path
    recipe: Recipe
    rows: list[Row]
    """All rows, or without most train rows if it was read so; no other property needs these."""

    @property
    def epochs(self) -> dict[int, Row]:
        """The metrics.jsonl row of each finished epoch, by the epoch's number from 1."""
        return {row["epoch"]: row for row in self.of_kind("epoch")}

    @property
    def epoch(self) -> int:
        """The number of the run's last finished epoch, counted from 1, or 0 if there is none."""
        return max(self.epochs, default=0)

    @property
    def start(self) -> Row:
        """The row of the run's latest start or resume, with machine and versions; empty if none."""
        return next(iter(self.of_kind("start")[::-1]), {})

    @property
    def starts(self) -> list[Row]:
        """The start rows, with machine and versions, of starts and resumes that finished an epoch.

        If none did, the list has the latest start only.
        """
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
        """Whether all epochs are finished or the run stopped early; never true for a dry run."""
        done = self.epochs  # a stranger's recipe may have a billion
        every = all(epoch in done for epoch in range(1, self.recipe.epochs + 1))
        over = every or self.recipe.has_stopped(done)
        return over and not self.recipe.rehearse

    @property
    def diverged(self) -> str | None:
        """The error message if the run has diverged; None if it has not, or was resumed since."""
        last = self.rows[-1] if self.rows else {}
        return str(last.get("text", "")) if last.get("kind") == "diverged" else None

    @property
    def begun(self) -> bool:
        """Whether the run's rows show that a step was made; the first follows `log_steps` steps."""
        return any(row["kind"] in (*MEASURED, "diverged") for row in self.rows)

    @property
    def state(self) -> str:
        """The state of the run in words: finished, early stopped, diverged, or the epochs done."""
        if self.recipe.rehearse:
            return "a dry run"
        if self.finished:
            return self.recipe.describe_early_stop(self.epochs) or "finished"
        if self.diverged is not None:
            return f"diverged in epoch {self.epoch + 1} of {self.recipe.epochs}"
        return f"{len(self.epochs)} of {self.recipe.epochs} epochs done"

    @property
    def metric(self) -> Metric:
        """The metric that judges the run: its workload's, or the time to the recipe's target.

        Older runs name no metric and have TOP1.
        """
        return self.recipe.final_metric(named_metric(self.start.get("metric", TOP1.name)))

    @property
    def final_metric(self) -> float:
        """The final metric of the run, computed from the epochs so far; NaN before the first."""
        return self.metric.final_metric(self.epochs)

    @property
    def number(self) -> float:
        """The final metric of the run, under the name that lsgd.api had for it in version 0.1."""
        return self.final_metric

    @property
    def sets(self) -> list[str]:
        """The names of the run's evaluation sets; the first is the set of the final metric."""
        ending = f"_{self.metric.name}"
        keys = [key for row in self.epochs.values() for key in row if key.endswith(ending)]
        names = dict.fromkeys([MAIN_SET, *(key.removesuffix(ending) for key in keys)])
        # No set has a _, but another metric may end in the name of this one, as position_error.
        return [name for name in names if name != "train" and "_" not in name]

    def number_on(self, evaluation_set: str) -> float | None:
        """Return the run's final metric on an evaluation set; None unless evaluated on it last.

        A run that was resumed without the set has its last metrics on the first set only.
        """
        evaluated = {epoch: row for epoch, row in self.epochs.items() if self.metric.key in row}
        last = evaluated[max(evaluated)] if evaluated else {}
        if evaluation_set not in self.sets or f"{evaluation_set}_{self.metric.name}" not in last:
            return None
        return self.metric.final_metric(self.epochs, evaluation_set)

    @property
    def things(self) -> str:
        """The unit of the run's speeds, such as images; empty before the first speed is written."""
        return next((counted for row in self.rows if (counted := speed_unit(row))), "")

    def of_kind(self, kind: str) -> list[Row]:
        """Return the run's metrics.jsonl rows of one kind, such as `epoch`, in order."""
        return [row for row in self.rows if row["kind"] == kind]


def steps_until_divergence(message: str | None) -> int | None:
    """Return the number of steps made when a value was not finite, by the message of the error.

    It is None without a message, or if the message names no step. Steps are numbered from 0.

    >>> steps_until_divergence("the loss or a gradient of step 71 is not finite; …")
    72
    >>> steps_until_divergence("a parameter, … is not finite before step 70 and was not saved; …")
    70
    """
    match = re.search(r"\b(of|before) step (\d{1,15})\b", message or "")
    return None if match is None else int(match[2]) + (match[1] == "of")


def read_run(path: Path, *, train_rows: bool = True) -> Run:
    """Read the training run in a folder; raise NotARunError if the folder has no readable one.

    All rows are checked. With `train_rows=False` the run keeps only those train rows that its
    properties are computed from, so that thousands of long runs fit into memory.
    """
    if not path.is_dir():
        raise NotARunError("it is not a folder")
    if not (path / "config.yaml").exists():
        raise NotARunError("it has no config.yaml")
    try:
        recipe = config.read_recipe(path / "config.yaml")
    except UsageError as error:
        what, _, _ = str(error).partition("; ")  # the suggested fix is for command lines
        raise NotARunError(f"config.yaml is not of a run of this lsgd: {what}") from None
    run = Run(path, recipe, _checked_rows(path / "metrics.jsonl", train_rows=train_rows))
    name = run.start.get("metric", TOP1.name)
    if not isinstance(name, str) or not recipe.knows_metric(name):
        raise NotARunError(
            f"metrics.jsonl has the metric {name}, and this lsgd supports {', '.join(METRICS)}"
        )
    for evaluation_set in run.sets:
        _check_metric(run, evaluation_set)
    if run.epoch > recipe.epochs:
        raise NotARunError(f"metrics.jsonl has epoch {run.epoch} and the recipe {recipe.epochs}")
    return run


def _check_metric(run: Run, evaluation_set: str) -> None:
    """Raise NotARunError unless the values of a run's metric on an evaluation set are numbers.

    Only the last epoch must have one, on the first set: a run may be resumed without the others.
    Where it is not finite, as null, it reaches no target, and the final metric of other runs may
    be computed from the epochs after it.
    """
    key = f"{evaluation_set}_{run.metric.name}"
    evaluated = [epoch for epoch in sorted(run.epochs) if key in run.epochs[epoch]]
    counts = isinstance(run.metric, TimeToTarget)
    allowed = evaluated if counts else evaluated[: -run.metric.last_epochs]
    last = {run.recipe.epochs} & run.epochs.keys() if evaluation_set == MAIN_SET else set()
    for epoch in sorted({*evaluated} | last):
        row = run.epochs[epoch]
        is_null = epoch in allowed and row[key] is None
        if not is_null and finite_number(row, key) is None:
            raise NotARunError(f"metrics.jsonl has no number for {key} of epoch {epoch}")


def _checked_rows(path: Path, *, train_rows: bool) -> list[Row]:
    """Read the rows of a run, or all but train rows that decide none of the run's properties.

    Of the train rows then those are left that say whether the run has begun, what its speed counts,
    and whether it continues after a row of another kind. Raises NotARunError.
    """
    reader = RowReader(path)
    rows: list[Row] = []
    last: Row | None = None
    has_begun = has_unit = False
    foreign = False
    try:
        for row in reader:
            # Damage further on is the reason that is given, if there is any.
            foreign = foreign or not is_row(row)
            if foreign:
                continue
            is_needed = train_rows or row["kind"] != "train" or not has_begun
            if not has_unit and speed_unit(row):
                is_needed = has_unit = True
            has_begun = has_begun or row["kind"] == "train"
            if is_needed:
                rows.append(row)
            last = None if is_needed else row
    except OSError as error:
        raise NotARunError(f"metrics.jsonl cannot be read ({error.strerror})") from None
    if reader.damaged_line:
        raise NotARunError(f"line {reader.damaged_line} of metrics.jsonl is damaged")
    if foreign:
        raise NotARunError("metrics.jsonl has rows that lsgd did not write")
    return rows if last is None else [*rows, last]


def without_side_files(paths: Sequence[Path]) -> list[Path]:
    """Return the paths without the files of a given run folder that stand beside it.

    A shell's pattern for run folders matches NAME.log and NAME.verification.json too.
    """
    folders = {path for path in paths if path.is_dir()}

    def is_side_file(path: Path) -> bool:
        dots = [place for place, letter in enumerate(path.name) if letter == "."]
        return path.is_file() and any(
            path.with_name(path.name[:dot]) in folders for dot in dots[:9] if dot
        )

    return [path for path in paths if not is_side_file(path)]


def has_failed(folder: Path) -> bool:
    """Return whether the latest supervised start of a run in this folder ended with an error."""
    last = (read_rows(folder / SUPERVISOR_LOG) or [{}])[-1]
    is_end = isinstance(last, dict) and last.get("event") == "end"
    return is_end and last.get("code") not in (0, PreemptedError.exit_code)


def planned_run_folder(recipe: Recipe) -> Path:
    """Return the folder of a study's run: `runs/trials/NAME-seedS-FINGERPRINT`.

    A run that several studies share is trained once, by the first of them.
    """
    return Path("runs/trials") / f"{recipe.name}-seed{recipe.seed}-{recipe.fingerprint[:8]}"
