"""The rows of a metrics.jsonl, one JSON object per line; reading them needs no torch."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from lsgd.untrusted_files import open_regular, parse_json

Row = dict[str, Any]
"""One row: `kind` (start, train, evaluation, epoch, warning, diverged), `step` and its values.

`step` is the number of steps that the run had made.
"""
MEASURED = ("train", "evaluation", "epoch")
"""The kinds of rows with measurements, in the order of such rows of one step.

An evaluation is one within an epoch; that at the end of an epoch is in the epoch's row.
"""

LONGEST = 2**20
"""The maximum bytes of a row; a longer line is not a row."""
PER_SECOND = "_per_second"
"""The suffix of a speed's key, such as images_per_second."""
WAITS = ("data_wait", "communication_wait")
"""The keys of the shares of process 0's time that were spent waiting; the second with others."""
STRAGGLER = "straggler"
"""The key of an epoch's host that made the others wait; rows without such a host lack it."""
COSTS = ("step_seconds", "peak_memory_mb", "memory_retries", "mfu")
"""The keys of what a step takes: process 0's time and memory, and the share of the GPUs' peak."""


class RowReader:
    """The rows of a metrics.jsonl file, read one by one in bounded memory up to a damaged line.

    A file that does not exist has no rows. A last line that a kill cut short is left out, as is
    everything after a damaged line. Iteration raises OSError if the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        """The number of rows read so far."""
        self.line = b""
        """The line of the last row, with its newline if the file has one there."""
        self.damaged_line: int | None = None
        """The number of the line that ended the reading because it is not JSON, if any did.

        The last line of the file does not count: a kill may have cut it short, or it is being
        written now.
        """

    def __iter__(self) -> Iterator[Row]:
        try:
            file = open_regular(self.path)
        except FileNotFoundError:
            return
        with file:
            # A longer line is split, and its parts are no JSON.
            while line := file.readline(LONGEST):
                try:
                    row = parse_json(line)
                except ValueError:
                    self.damaged_line = self.count + 1 if file.readline(1) else None
                    return
                self.count += 1
                self.line = line
                yield row


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a metrics.jsonl file that RowReader reads; raises OSError."""
    return list(RowReader(path))


def read_last_rows(path: Path) -> list[Row]:
    """Return the rows in the last LONGEST bytes of a metrics.jsonl file, read from there alone.

    As of the whole file, a last line that a kill cut short is left out, as is everything after a
    damaged line; damage before these bytes is not noticed. Raises OSError if the file exists and
    cannot be read.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return []
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LONGEST - 1))
        if size > LONGEST:
            file.readline(LONGEST + 1)
        lines = file.read(LONGEST).split(b"\n")
    rows: list[Row] = []
    with suppress(ValueError):
        for line in lines:
            rows.append(parse_json(line))
    return rows


def finite_number(row: Row, key: str) -> float | None:
    """Return a metrics.jsonl row's value under this key if it is a finite number, else None.

    A value that was not finite is null in the file.
    """
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of a stranger's file that no float holds
        return None
    return number if math.isfinite(number) else None


def is_row(value: Any) -> bool:
    """Return whether a value parsed from a line of metrics.jsonl is a row as lsgd writes them."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return False
    try:
        start_time(value)
    except (TypeError, ValueError):
        return False
    # The exact type, since isinstance would accept a bool as an int.
    counts = [value.get("step"), *([value.get("epoch")] if value["kind"] == "epoch" else [])]
    return all(type(count) is int for count in counts)


def start_time(start: Row) -> float:
    """Return when a run's start row was written, in seconds since 1970; 0 if it has no time.

    >>> start_time({"kind": "start", "step": 0, "time": "1970-01-01T02:00:07+02:00"})
    7.0
    """
    return datetime.fromisoformat(start["time"]).timestamp() if "time" in start else 0.0


def depends_on_hardware(key: str) -> bool:
    """Return whether the value of a row's key depends on the hardware, and differs in each run.

    >>> [key for key in ("loss", "images_per_second", "mfu") if depends_on_hardware(key)]
    ['images_per_second', 'mfu']
    """
    return key in (*WAITS, *COSTS, STRAGGLER) or key.endswith(PER_SECOND)


def speed_unit(row: Row) -> str:
    """Return the unit of a row's training speed, such as images; an empty string without a speed.

    >>> speed_unit({"step": 3, "images_per_second": 900.0, "data_wait": 0.1})
    'images'
    """
    return next((key.removesuffix(PER_SECOND) for key in row if key.endswith(PER_SECOND)), "")
