"""Processes that train on their own, watched from outside: their rows, and the CPU they take.

What a bench job measures is driven from here; this is for programs that nobody can ask: a training
run, and the processes of another library's cluster. They write rows of a metrics.jsonl.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lsgd.bench.job import refuse
from lsgd.bench.usage import usage
from lsgd.errors import Refused
from lsgd.job.children import OURS, Child, started
from lsgd.job.ending import tagged
from lsgd.run.rows import Row, read_rows

POLL = 0.02
"""Seconds between two looks, and so the error of a time at which a row was seen."""

Command = tuple[Sequence[str], Mapping[str, str]]
"""The words of a process, and what it has in its environment."""


@dataclass(frozen=True)
class Sighting:
    """The moment at which a row of training was first seen."""

    rows: int
    """The rows of training that there were."""
    seconds: float
    """The time since the processes were started."""
    cpu_seconds: float
    """What all processes together have used of the CPU by then."""


@dataclass(frozen=True)
class Watched:
    """A run that has ended: all of its rows, and when those of training were seen."""

    rows: list[Row]
    sightings: list[Sighting]

    @property
    def training(self) -> list[Row]:
        """The rows of training."""
        return _training(self.rows)

    def speed(self, images: int) -> float:
        """The images per second of the rows after the first sighting, each of whose updates has so
        many."""
        seconds, updates = self._steady(images)
        return images * updates / seconds

    def start_up(self, images: int) -> float:
        """The seconds from the start until the first update was made.

        The first row ends with a later one; the others before it count at the steady pace, so what
        is made once, such as a graph, counts as start-up.
        """
        seconds, updates = self._steady(images)
        return self.sightings[0].seconds - self._later * seconds / updates

    def start_up_cpu(self) -> float:
        """The CPU seconds of all processes until the first update was made, likewise."""
        first, last = self.sightings[0], self.sightings[-1]
        updates = self.training[last.rows - 1]["step"] - self.training[first.rows - 1]["step"]
        steady = (last.cpu_seconds - first.cpu_seconds) / updates
        return first.cpu_seconds - self._later * float(steady)

    def cores(self) -> float:
        """The CPU seconds per second of all processes, from the first sighting to the last."""
        first, last = self.sightings[0], self.sightings[-1]
        return (last.cpu_seconds - first.cpu_seconds) / (last.seconds - first.seconds)

    @property
    def _later(self) -> int:
        """The updates after the first one until the first sighting."""
        return int(self.training[self.sightings[0].rows - 1]["step"]) - 1

    def _steady(self, images: int) -> tuple[float, int]:
        """The seconds and the updates of the rows after the first sighting."""
        rows = self.training[self.sightings[0].rows - 1 :]
        updates = [row["step"] - before["step"] for before, row in pairwise(rows)]
        seconds = [
            images * count / row["images_per_second"]
            for count, row in zip(updates, rows[1:], strict=True)
        ]
        return sum(seconds), sum(updates)


def watch(name: str, commands: Sequence[Command], file: Path, *, limit: float) -> Watched:
    """Start the processes, and watch the rows in the file until the first of them has ended.

    Afterwards all have ended, whatever happens. Raises Refused, naming the run, if one of them
    fails, if the first has not ended after `limit` seconds, or if there were too few rows to see.
    """
    sightings: list[Sighting] = []
    size = 0
    with ExitStack() as running:
        begin = time.monotonic()
        children = [
            running.enter_context(started(words, environment=environment))
            for words, environment in commands
        ]
        while children[0].wait(POLL) is None:
            for child in children[1:]:
                _check(name, child, limit)
            if time.monotonic() - begin > limit:
                refuse(name, children[0], limit)
            if (now := file.stat().st_size if file.exists() else 0) == size:
                continue
            size = now
            rows = len(_training(read_rows(file)))
            if rows > (sightings[-1].rows if sightings else 0):
                sightings.append(Sighting(rows, time.monotonic() - begin, _cpu_seconds()))
        _check(name, children[0], limit)
    if len(sightings) < 2:
        raise Refused(
            f"{name}: its rows were seen {len(sightings)} times, which leaves nothing between the "
            "first time and the last; write more images, such as data.train_examples=3200"
        )
    return Watched(read_rows(file), sightings)


def _check(name: str, child: Child, limit: float) -> None:
    if child.process.poll():
        refuse(name, child, limit)


def _training(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == "train"]


def _cpu_seconds() -> float:
    """What the living processes that were started here have used of the CPU."""
    seconds = 0.0
    for pid in tagged(OURS):
        with suppress(OSError):  # it has ended meanwhile
            seconds += usage(pid).cpu_seconds
    return seconds
