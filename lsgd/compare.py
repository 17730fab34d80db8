"""Where two runs part: `python -m lsgd.compare RUN RUN`, for two run folders.

First the fields in which their recipes differ, those that decide what is computed before those that
decide how fast and where. Then the first row of metrics.jsonl that differs, of those that both
runs have: rows are matched by kind and step. What is of the hardware (speed, time waited for data)
or of the division into passes (noise scale) is not compared, and a mean over steps only where it is
over the same steps in both, as it is not with other log_steps or in the first row after a resume.

exit codes: 0 the runs do not part, 1 they part, 2 refused, as a folder holds no run or the two
have no row in common.
"""

import json
import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lsgd.errors import Refused
from lsgd.job.command import Parser, run_alone
from lsgd.recipe import Recipe
from lsgd.recipe.fields import flat
from lsgd.run.read import NotARun, Run, read_run
from lsgd.run.rows import PER_SECOND, Row
from lsgd.tables import markdown

OF_THE_STEP = {"epoch", "lr", "gradient_norm"}
"""Values of a train row that are of its last step alone; others are means over its steps."""
NOISE = {"gradient_square", "gradient_variance", "noise_scale"}
"""Estimates from the gradients of single passes, so other ones with other passes."""


@dataclass(frozen=True)
class DifferingField:
    """A field in which two recipes differ, by its dotted key; None where one lacks it."""

    key: str
    values: tuple[Any, Any]
    trajectory: bool
    """Whether it decides what is computed."""


@dataclass(frozen=True)
class Parting:
    """The first value in which two runs differ."""

    kind: str
    step: int
    key: str
    values: tuple[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """What the rows that two runs have in common say."""

    rows: int
    """Rows that both have and that are equal, to the tolerance."""
    last_step: int
    """Step of the last of these; 0 without any."""
    difference: float
    """The largest relative difference in them."""
    parting: Parting | None
    """What stands in the row behind them, unless all are equal."""


def differing_fields(recipes: tuple[Recipe, Recipe]) -> list[DifferingField]:
    """The fields in which two recipes differ, those of the trajectory first, in the recipe's order.

    The run folder is left out, as any two runs have two.
    """
    trajectories = [dict(flat(recipe.trajectory())) for recipe in recipes]
    # A trajectory may say more than the fields: that images are synthetic.
    first, second = (
        dict(flat(asdict(recipe))) | trajectory
        for recipe, trajectory in zip(recipes, trajectories, strict=True)
    )
    decisive = trajectories[0].keys() | trajectories[1].keys()
    fields = [
        DifferingField(key, (first.get(key), second.get(key)), key in decisive)
        for key in first | second
        if key != "run_dir" and first.get(key) != second.get(key)
    ]
    return sorted(fields, key=lambda field: not field.trajectory)


def relative_difference(first: Any, second: Any) -> float:
    """The difference of two values as a share of the larger one; infinite if one is no number.

    >>> relative_difference(2.0, 1.5), relative_difference(0, 0.0), relative_difference(None, None)
    (0.25, 0.0, 0.0)
    >>> relative_difference(None, 1.0)
    inf
    """
    if first == second:
        return 0.0
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        return math.inf
    return abs(first - second) / max(abs(first), abs(second))


def compare_metrics(runs: tuple[Run, Run], tolerance: float) -> Comparison:
    """Compare the rows of two runs up to the first value that differs by more than the tolerance.

    Raises Refused if they have no row in common.
    """
    first, second = map(_rows, runs)
    rows, last_step, largest = 0, 0, 0.0
    for kind, step in (place for place in first if place in second):
        (row, begin), (other, other_begin) = first[kind, step], second[kind, step]
        keys = [key for key in row if key in other and not _of_the_hardware(key)]
        if begin != other_begin:
            keys = [key for key in keys if key in OF_THE_STEP]
        differences = {key: relative_difference(row[key], other[key]) for key in keys}
        for key, difference in differences.items():
            # Worded so that no tolerance holds for a difference that is not a number.
            if not difference <= tolerance:
                values = row[key], other[key]
                return Comparison(rows, last_step, largest, Parting(kind, step, key, values))
        rows, last_step = rows + 1, step
        largest = max([largest, *differences.values()])
    parting = _divergence(runs)
    if not rows and not parting:
        raise Refused(
            f"{runs[0].path} and {runs[1].path} have no row of the same kind and step in "
            "metrics.jsonl; give runs that were trained for longer, or with the same log_steps"
        )
    return Comparison(rows, last_step, largest, parting)


def _of_the_hardware(key: str) -> bool:
    """Whether a value says how fast, where or in which passes it was computed, and not what."""
    if key.removeprefix("train_") in NOISE:
        return True
    return key in ("data_wait", "wire_bytes") or key.endswith(PER_SECOND)


def _rows(run: Run) -> dict[tuple[str, int], tuple[Row, int | None]]:
    """The rows to compare by kind and step, in their order; with where their means begin, if so."""
    rows: dict[tuple[str, int], tuple[Row, int | None]] = {}
    begin = 0
    for row in run.rows:
        kind, step = row["kind"], row["step"]
        if kind in ("train", "epoch"):
            rows[kind, step] = row, begin if kind == "train" else None
        # A mean begins anew with an epoch, and where a run resumes.
        if kind in ("start", "train", "epoch"):
            begin = step
    return rows


def _divergence(runs: tuple[Run, Run]) -> Parting | None:
    """That one run has diverged where the other goes on, or that both have, but not alike."""
    ends = runs[0].diverged, runs[1].diverged
    if None not in ends and ends[0] != ends[1]:
        step = min(run.rows[-1]["step"] for run in runs)
        return Parting("diverged", step, "text", ends)
    for run, other in (runs, runs[::-1]):
        if run.diverged is not None and other.diverged is None:
            step = run.rows[-1]["step"]
            if _last_step(other) > step:
                values = run.diverged, "goes on"
                return Parting("diverged", step, "text", values if run is runs[0] else values[::-1])
    return None


def _last_step(run: Run) -> int:
    return max((row["step"] for row in run.rows), default=0)


def recipes_report(runs: tuple[Run, Run]) -> str:
    """What the recipes have to do with each other: one sentence, and a table of what differs."""
    fields = differing_fields((runs[0].recipe, runs[1].recipe))
    if not fields:
        return "The recipes are the same."
    differ = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
    decides = {True: "what is computed", False: "how fast and where"}
    rows = [[field.key, *map(_short, field.values), decides[field.trajectory]] for field in fields]
    table = markdown(["field", *(str(run.path) for run in runs), "decides"], rows)
    return f"The recipes differ in {differ}, first in {fields[0].key}:\n\n{table}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def metrics_report(runs: tuple[Run, Run], metrics: Comparison) -> str:
    """What the rows of the two runs have to do with each other, in sentences."""
    equal = "to the bit"
    if metrics.difference:
        equal = f"to a relative difference of {metrics.difference:.2g}"
    rows = "the row" if metrics.rows == 1 else f"the {metrics.rows} rows"
    common = f"equal {equal} in {rows} that both have up to step {metrics.last_step}"
    if parting := metrics.parting:
        difference = relative_difference(*parting.values)
        apart = "" if math.isinf(difference) else f", a relative difference of {difference:.2g}"
        values = " and ".join(map(json.dumps, parting.values))
        return (
            f"The runs part at step {parting.step}, in {parting.key} of the {parting.kind} row: "
            f"{values}{apart}. "
            + (f"Before, they are {common}." if metrics.rows else "It is the first that both have.")
        )
    ends = [_last_step(run) for run in runs]
    lengths = f" {runs[0].path} ends at step {ends[0]}, {runs[1].path} at step {ends[1]}."
    return f"The runs do not part: {common}.{lengths if ends[0] != ends[1] else ''}"


def _run(folder: Path) -> Run:
    try:
        return read_run(folder)
    except NotARun as reason:
        raise Refused(f"{folder} is no run folder: {reason}; give one that lsgd wrote") from None


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = Parser("lsgd.compare", about, epilog=rest)
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        metavar="X",
        default=0.0,
        help="the relative difference up to which two values are the same (default 0: every bit)",
    )

    def command() -> int:
        options = parser.parse_args(argv)
        runs = _run(options.runs[0]), _run(options.runs[1])
        metrics = compare_metrics(runs, options.tolerance)
        print(f"{recipes_report(runs)}\n\n{metrics_report(runs, metrics)}")
        return int(metrics.parting is not None)

    return run_alone(command)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
