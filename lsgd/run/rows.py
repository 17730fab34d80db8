"""The rows of a metrics.jsonl, one JSON object per line; reading them needs no torch."""

import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from lsgd.untrusted_files import open_regular, parse_json

Row = dict[str, Any]
"""One row: `kind` (start, train, epoch, warning, diverged), `step` and the values of that kind.

`step` is the number of steps that the run had made.
"""

LONGEST = 2**20
"""The maximum bytes of a row; a longer line is not a row."""
PER_SECOND = "_per_second"
"""The suffix of a speed's key, such as images_per_second."""
WAITS = ("data_wait", "communication_wait")
"""The keys of the shares of process 0's time that were spent waiting; the second with others."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a metrics.jsonl file, or no rows if the file does not exist.

    A last line that a kill cut short is left out, as is everything after a damaged line. Raises
    OSError if the file cannot be read.
    """
    return scan_rows(path)[0]


def damaged_line(path: Path) -> int | None:
    """Return the number of the first line of a metrics.jsonl that is not JSON, or None without one.

    The last line does not count: a kill may have cut it short, or it is being written now.
    """
    return scan_rows(path)[1]


def finite_number(row: Row, key: str) -> float | None:
    """Return a metrics.jsonl row's value under this key if it is a finite number, else None.

    A value that was not finite is null in the file.
    """
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def start_time(start: Row) -> float:
    """Return when a run's start row was written, in seconds since 1970; 0 if it has no time.

    >>> start_time({"kind": "start", "step": 0, "time": "1970-01-01T02:00:07+02:00"})
    7.0
    """
    return datetime.fromisoformat(start["time"]).timestamp() if "time" in start else 0.0


def speed_unit(row: Row) -> str:
    """Return the unit of a row's training speed, such as images; an empty string without a speed.

    >>> speed_unit({"step": 3, "images_per_second": 900.0, "data_wait": 0.1})
    'images'
    """
    return next((key.removesuffix(PER_SECOND) for key in row if key.endswith(PER_SECOND)), "")


def scan_rows(path: Path) -> tuple[list[Row], int | None]:
    """Read a metrics.jsonl once; return the rows before any damaged line, and the line's number."""
    rows: list[Row] = []
    lines = _lines(path)
    for line in lines:
        try:
            rows.append(parse_json(line))
        except ValueError:
            return rows, len(rows) + 1 if next(lines, None) is not None else None
    return rows, None


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bytes, split at every LONGEST bytes; none without a file."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(LONGEST):
            yield line
