"""Observation of independent training processes from outside: their rows and their CPU time.

A job of lsgd.bench is driven by requests. This module is for programs that take none: a training
run, and the processes of another library's cluster. They write rows of a metrics.jsonl.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.usage import usage
from lsgd.bench.job import raise_job_error
from lsgd.errors import UsageError
from lsgd.job.children import OURS, Child, running_child
from lsgd.job.system import tagged_pids
from lsgd.run.rows import Row, read_rows

POLL = 0.02
"""The seconds between polls, and so the error of a row's observed time."""

Command = tuple[Sequence[str], Mapping[str, str]]
"""The arguments and the environment variables of a process."""


@dataclass(frozen=True)
class RowObservation:
    """The time at which a number of training rows was first observed."""

    rows: int
    """The number of training rows in the file."""
    seconds: float
    """The seconds since the processes were started."""
    cpu_seconds: float
    """The CPU seconds that all processes have used until then."""


@dataclass(frozen=True)
class ObservedRun:
    """A finished run: all its rows, and the times at which the training rows were observed."""

    rows: list[Row]
    observations: list[RowObservation]

    @property
    def training(self) -> list[Row]:
        """The training rows of the run."""
        return _training(self.rows)

    def speed(self, images: int) -> float:
        """Return the images per second of the rows after the first observation.

        Each of their updates has `images` images.
        """
        seconds, updates = self._steady(images)
        return images * updates / seconds

    def start_up(self, images: int) -> float:
        """Return the seconds from the start until the first update.

        The first row ends with a later update; the updates before it count at the steady speed, so
        one-time work, such as building a graph, counts as start-up.
        """
        seconds, updates = self._steady(images)
        return self.observations[0].seconds - self._later * seconds / updates

    def start_up_cpu(self) -> float:
        """Return the CPU seconds of all processes until the first update, as `start_up` does."""
        first, last = self.observations[0], self.observations[-1]
        updates = self.training[last.rows - 1]["step"] - self.training[first.rows - 1]["step"]
        steady = (last.cpu_seconds - first.cpu_seconds) / updates
        return first.cpu_seconds - self._later * float(steady)

    def busy_cores(self) -> float:
        """Return the mean number of busy cores from the first observation to the last.

        That is the CPU seconds per second of all processes.
        """
        first, last = self.observations[0], self.observations[-1]
        return (last.cpu_seconds - first.cpu_seconds) / (last.seconds - first.seconds)

    @property
    def _later(self) -> int:
        """The updates between the first one and the first observation."""
        return int(self.training[self.observations[0].rows - 1]["step"]) - 1

    def _steady(self, images: int) -> tuple[float, int]:
        """Return the seconds and the updates of the rows after the first observation."""
        rows = self.training[self.observations[0].rows - 1 :]
        updates = [row["step"] - before["step"] for before, row in pairwise(rows)]
        seconds = [
            images * count / row["images_per_second"]
            for count, row in zip(updates, rows[1:], strict=True)
        ]
        return sum(seconds), sum(updates)


def observe_run(name: str, commands: Sequence[Command], file: Path, *, limit: float) -> ObservedRun:
    """Start the processes, and observe the rows in the file until the first process has ended.

    All have ended when this returns or raises. Raises UsageError, naming the run, if one of them
    fails, if the first has not ended after `limit` seconds, or if too few rows were observed.
    """
    sightings: list[RowObservation] = []
    size = 0
    with ExitStack() as running:
        begin = time.monotonic()
        children = [
            running.enter_context(running_child(arguments, environment=environment))
            for arguments, environment in commands
        ]
        while children[0].wait(POLL) is None:
            for child in children[1:]:
                _check(name, child, limit)
            if time.monotonic() - begin > limit:
                raise_job_error(name, children[0], limit)
            if (now := file.stat().st_size if file.exists() else 0) == size:
                continue
            size = now
            rows = len(_training(read_rows(file)))
            if rows > (sightings[-1].rows if sightings else 0):
                sightings.append(RowObservation(rows, time.monotonic() - begin, _cpu_seconds()))
        _check(name, children[0], limit)
    if len(sightings) < 2:
        raise UsageError(
            f"{name}: its rows were seen {len(sightings)} times, which leaves nothing between the "
            "first time and the last; write more images, such as data.train_examples=3200"
        )
    return ObservedRun(read_rows(file), sightings)


def _check(name: str, child: Child, limit: float) -> None:
    if child.process.poll():
        raise_job_error(name, child, limit)


def _training(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == "train"]


def _cpu_seconds() -> float:
    """Return the CPU seconds of the running processes that were started here."""
    seconds = 0.0
    for pid in tagged_pids(OURS):
        with suppress(OSError):  # it has ended meanwhile
            seconds += usage(pid).cpu_seconds
    return seconds
