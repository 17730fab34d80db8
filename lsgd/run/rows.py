"""The rows of a metrics.jsonl, one JSON object per line; reading them needs no torch."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""`kind` (start, train, epoch, warning, diverged), `step` (steps of the run made until then), and
the values of that kind."""

PER_SECOND = "_per_second"
"""The end of the key of a speed, such as images_per_second."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl, none if it is not there.

    A last line that a kill cut short is left out, and whatever stands behind a damaged one.
    """
    rows = []
    for line in _lines(path):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def damaged_line(path: Path) -> int | None:
    """The number of the first line that is no JSON, unless it is the last, which a kill may have
    cut short or which is being written now."""
    good = len(read_rows(path))
    return good + 1 if good < len(_lines(path)) - 1 else None


def number(row: Row, key: str) -> float | None:
    """The finite number under this key, if there is one; what was not finite is null."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def moment(start: Row) -> float:
    """When this row of a start was written, in seconds since 1970; 0 if it does not say.

    >>> moment({"kind": "start", "step": 0, "time": "1970-01-01T02:00:07+02:00"})
    7.0
    """
    return datetime.fromisoformat(start["time"]).timestamp() if "time" in start else 0.0


def things(row: Row) -> str:
    """What the speed of this row counts, such as images; empty if it has no speed.

    >>> things({"step": 3, "images_per_second": 900.0, "data_wait": 0.1})
    'images'
    """
    return next((key.removesuffix(PER_SECOND) for key in row if key.endswith(PER_SECOND)), "")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
