"""Find the first difference between two runs: `python -m lsgd.compare RUN OTHER_RUN`.

Print the fields in which the two recipes differ, first those that decide what is computed, then
those that decide how fast and where. Then print the first difference between the rows of
metrics.jsonl, which are matched by kind and step. Values that depend on the hardware (speed, data
wait) or on the division into micro-batches (noise scale) are not compared. A mean over steps is
compared only if it covers the same steps in both runs, which it does not with other log_steps or in
the first row after a resume.

exit codes: 0 no difference, 1 a difference, 2 refused, as a folder holds no run or the two have no
row in common.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lsgd.errors import UsageError
from lsgd.job.command import Parser, number_type, run_alone
from lsgd.recipe import differing_fields
from lsgd.run.read import NotARunError, Run, read_run, steps_until_divergence
from lsgd.run.rows import MEASURED, Row, RowReader, depends_on_hardware
from lsgd.tables import format_count, markdown_table

LAST_STEP_KEYS = {"epoch", "lr", "gradient_norm", "loss_scale", "skipped_steps"}
"""The values of a train row that describe its last step alone; others are means over its steps."""
NOISE_SCALE_KEYS = {"gradient_square", "gradient_variance", "noise_scale"}
"""The noise-scale estimates, which depend on how a step is divided into micro-batches."""


@dataclass(frozen=True)
class FirstMismatch:
    """The first value in which the metrics.jsonl rows of two runs differ."""

    kind: str
    step: int
    key: str
    values: tuple[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """The result of comparing the metrics.jsonl rows that two runs have in common."""

    rows: int
    """The number of common rows before the first difference, equal within the tolerance."""
    last_step: int
    """The step of the last equal row; 0 without any."""
    max_difference: float
    """The largest relative difference in the equal rows."""
    first_mismatch: FirstMismatch | None
    """The first difference; None if all common rows are equal."""
    lone_keys: tuple[tuple[str, ...], ...] = ((), ())
    """The keys, of each run, that the other run lacks in one of these rows, not compared."""


def relative_difference(first: Any, second: Any, least: float = 0.0) -> float:
    """Return the relative difference of two metric values; infinite if unequal and not numbers.

    It is relative to the larger value, or to `least` if that is larger still.

    >>> relative_difference(2.0, 1.5), relative_difference(0, 0.0), relative_difference(None, None)
    (0.25, 0.0, 0.0)
    >>> relative_difference(None, 1.0), relative_difference(0.0, 1e-6, least=1e-3)
    (inf, 0.001)
    """
    if first == second:
        return 0.0
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        return math.inf
    try:
        return abs(first - second) / max(abs(first), abs(second), least)
    except OverflowError:  # an integer of a stranger's file that no float holds
        return math.inf


def compare_metrics(runs: tuple[Run, Run], tolerance: float) -> Comparison:
    """Compare the metrics.jsonl rows of two runs up to the first difference above the tolerance.

    The rows are read from the run folders, in pairs. Raises UsageError if the runs have no row in
    common, or if the rows of one are not in the order of their steps.
    """
    rows, last_step, largest = 0, 0, 0.0
    lone: tuple[dict[str, None], ...] = ({}, {})
    both = (compared_rows(RowReader(run.path / "metrics.jsonl"), run.path) for run in runs)
    for first, second in common_rows(*both):
        row, other = first.row, second.row
        for found, own, others in ((lone[0], row, other), (lone[1], other, row)):
            found |= {key: None for key in own if key not in others and not is_not_compared(key)}
        keys = [key for key in row if key in other and not is_not_compared(key)]
        if first.begin != second.begin:
            keys = [key for key in keys if key in LAST_STEP_KEYS]
        differences = {key: relative_difference(row[key], other[key]) for key in keys}
        for key, difference in differences.items():
            # Written so that a difference of NaN is above any tolerance.
            if not difference <= tolerance:
                values = row[key], other[key]
                mismatch = FirstMismatch(row["kind"], row["step"], key, values)
                return Comparison(rows, last_step, largest, mismatch, tuple(map(tuple, lone)))
        rows, last_step = rows + 1, row["step"]
        largest = max([largest, *differences.values()])
    parting = _divergence(runs)
    if not rows and not parting:
        raise UsageError(
            f"{runs[0].path} and {runs[1].path} have no row of the same kind and step in "
            "metrics.jsonl; give runs with more steps, or with the same log_steps"
        )
    return Comparison(rows, last_step, largest, parting, tuple(map(tuple, lone)))


def is_not_compared(key: str) -> bool:
    """Return whether a metrics key depends on hardware or micro-batches and is not compared."""
    if key.removeprefix("train_") in NOISE_SCALE_KEYS:
        return True
    return key == "wire_bytes" or depends_on_hardware(key)


class ComparedRow(NamedTuple):
    """A row of measurements of a run, with the place at which the other run's is looked for."""

    place: tuple[int, int]
    """The step, and the number of the row's kind in MEASURED, as rows of one step are ordered."""
    row: Row
    begin: int | None
    """The first step that the means of a train row cover; None for other rows."""


def compared_rows(rows: Iterable[Row], folder: Path) -> Iterator[ComparedRow]:
    """Yield the rows with measurements of the run in a folder, each with its place in the run.

    Raises UsageError if the rows are not in the order of their steps.
    """
    begin, before = 0, (-1, 0)
    for row in rows:
        kind, step = row["kind"], row["step"]
        if kind in MEASURED:
            place = step, MEASURED.index(kind)
            if place <= before:
                raise UsageError(
                    f"metrics.jsonl of {folder} has a {kind} row of step {step} behind one of "
                    f"step {before[0]}, and rows are compared in the order of steps, once each; "
                    "give the file as lsgd wrote it"
                )
            before = place
            yield ComparedRow(place, row, begin if kind == "train" else None)
        # Means restart with each epoch, and where a run resumes.
        if kind in ("start", "train", "epoch"):
            begin = step


def common_rows(
    first: Iterator[ComparedRow], second: Iterator[ComparedRow]
) -> Iterator[tuple[ComparedRow, ComparedRow]]:
    """Yield the pairs of rows of the same step and kind, reading both runs side by side."""
    other = next(second, None)
    for row in first:
        while other and other.place < row.place:
            other = next(second, None)
        if other is None:
            return
        if other.place == row.place:
            yield row, other


def _divergence(runs: tuple[Run, Run]) -> FirstMismatch | None:
    """Return the mismatch if two runs differ in whether or why they diverged; else None.

    If both have diverged, it is a difference of their messages. A run only counts as not diverged
    if it has rows of later steps.
    """
    ends = runs[0].diverged, runs[1].diverged
    if None not in ends and ends[0] != ends[1]:
        return FirstMismatch("diverged", min(map(_divergence_step, runs)), "text", ends)
    for run, other in (runs, runs[::-1]):
        if run.diverged is not None and other.diverged is None:
            step = _divergence_step(run)
            if _last_step(other) > step:
                values = run.diverged, "continues"
                return FirstMismatch(
                    "diverged", step, "text", values if run is runs[0] else values[::-1]
                )
    return None


def _divergence_step(run: Run) -> int:
    """Return the number of steps that a diverged run made; its last row may be of fewer."""
    steps = steps_until_divergence(run.diverged)
    return run.rows[-1]["step"] if steps is None else steps


def _last_step(run: Run) -> int:
    return max((row["step"] for row in run.rows), default=0)


def recipes_report(runs: tuple[Run, Run]) -> str:
    """Return the report on two runs' recipes: one sentence and a table of differing fields."""
    fields = differing_fields((runs[0].recipe, runs[1].recipe))
    if not fields:
        return "The recipes are the same."
    differ = format_count(len(fields), "field")
    decides = {True: "what is computed", False: "how fast and where"}
    rows = [[field.key, *map(_short, field.values), decides[field.trajectory]] for field in fields]
    table = markdown_table(["field", *(str(run.path) for run in runs), "decides"], rows)
    return f"The recipes differ in {differ}, first in {fields[0].key}:\n\n{table}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def metrics_report(runs: tuple[Run, Run], metrics: Comparison) -> str:
    """Return the report, in sentences, on a comparison of two runs' metrics.jsonl rows."""
    equal = "to the bit"
    if metrics.max_difference:
        equal = f"within a relative difference of {metrics.max_difference:.2g}"
    rows = "the row" if metrics.rows == 1 else f"the {metrics.rows} rows"
    common = f"equal {equal} in {rows} that both have up to step {metrics.last_step}"
    if parting := metrics.first_mismatch:
        difference = relative_difference(*parting.values)
        apart = "" if math.isinf(difference) else f", a relative difference of {difference:.2g}"
        values = " and ".join(map(json.dumps, parting.values))
        return (
            f"The runs first differ at step {parting.step}, in {parting.key} of the "
            f"{parting.kind} row: {values}{apart}. "
            + (
                f"Before, they are {common}."
                if metrics.rows
                else "It is the first row that both have."
            )
        )
    ends = [_last_step(run) for run in runs]
    lengths = f" {runs[0].path} ends at step {ends[0]}, {runs[1].path} at step {ends[1]}."
    return f"The runs do not differ: {common}.{lengths if ends[0] != ends[1] else ''}"


def _run(folder: Path) -> Run:
    try:
        return read_run(folder, train_rows=False)
    except NotARunError as reason:
        raise UsageError(
            f"{folder} is not a run folder: {reason}; give one that lsgd wrote"
        ) from None


def _compare(options: argparse.Namespace) -> int:
    """Print how the two runs of a command line differ; return 1 if their metrics do, else 0."""
    runs = _run(options.run), _run(options.other)
    # First, since runs of other steps have no row in common, and their recipes say why.
    print(f"{recipes_report(runs)}\n", flush=True)
    metrics = compare_metrics(runs, options.tolerance)
    print(metrics_report(runs, metrics))
    for run, lone in zip(runs, metrics.lone_keys, strict=True):
        if lone:
            print(f"Only {run.path} has {', '.join(lone)}: not compared.")
    return int(metrics.first_mismatch is not None)


def main(argv: Sequence[str]) -> int:
    """Run the `lsgd compare` command line and return its exit code."""
    parser = Parser("lsgd.compare", __doc__ or "")
    parser.add_path("run", "RUN", "a run folder")
    parser.add_path("other", "OTHER_RUN", "the run folder to compare it with")
    parser.add_argument(
        "--tolerance",
        type=number_type(lambda value: 0 <= value < math.inf, "a number of 0 or more"),
        metavar="X",
        default=0.0,
        help="the relative difference up to which two values are the same (default 0: every bit)",
    )

    return run_alone(lambda: _compare(parser.parse_args(argv)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
