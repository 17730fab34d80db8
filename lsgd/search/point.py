"""A point of a search and what has become of it, as engines and reports see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lsgd.recipe.search import Value

Values = Mapping[str, Value]
"""What a point says of each field of the space."""

STATES = FINISHED, PRUNED, FAILED, RUNNING = "finished", "pruned", "failed", "running"


@dataclass(frozen=True)
class Point:
    """One point of the search, and what has become of it."""

    number: int
    values: Values
    state: str
    value: float | None
    """Of a finished one, the mean number of its runs; the lower, the better."""
    reported: dict[int, float]
    """What its runs said after each epoch, counted over the seeds of the point."""
    why: str
    """Why it has failed."""
    began: datetime | None
    ended: datetime | None


def best_of(points: Sequence[Point]) -> Point | None:
    """The finished point with the lowest value, the first of several; None without any."""
    finished = [point for point in points if point.state == FINISHED]
    return min(finished, key=lambda point: point.value or 0.0, default=None)
