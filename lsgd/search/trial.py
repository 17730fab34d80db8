"""A trial of a search and its state, and the request that stops the run of a trial."""

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lsgd.recipe.search import Value

Values = Mapping[str, Value]
"""The value of each field of the search space at one point."""

STATES = FINISHED, PRUNED, FAILED, RUNNING = "finished", "pruned", "failed", "running"


@dataclass(frozen=True)
class Trial:
    """One trial of a hyper-parameter search: a point of the search space, its state and value."""

    number: int
    values: Values
    state: str
    value: float | None
    """For a finished trial, the mean final metric of its runs; lower is better."""
    reported: dict[int, float]
    """The metric of its runs by epoch, counted on over the trial's seeds."""
    why: str
    """The reason of its failure."""
    began: datetime | None
    ended: datetime | None
    epochs: int | None = None
    """The epochs that its runs would train, in the record of a search that varies them."""
    is_retry: bool = False
    """Whether it repeats a trial that had failed."""


def best_trial(points: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the lowest finite value, or None if there is none."""
    finished = [point for point in points if point.state == FINISHED and has_number(point)]
    return min(finished, key=lambda point: point.value or 0.0, default=None)


def has_number(point: Trial) -> bool:
    """Return whether a trial has a finite value; one that missed its target has an infinite one."""
    return point.value is not None and math.isfinite(point.value)


@dataclass
class StopRequest(Sequence[int]):
    """The signals that ask a run to save a checkpoint and exit; more may arrive as it trains."""

    search_signals: Sequence[int]
    """The signals that the search itself has received."""
    prune_signals: list[int] = field(default_factory=list)
    """One signal if the trial has been pruned, else none."""

    def __len__(self) -> int:
        return len(self.search_signals) + len(self.prune_signals)

    def __getitem__(self, index: Any) -> Any:
        return [*self.prune_signals, *self.search_signals][index]

    def prune(self) -> None:
        """Request that the run of a pruned trial stops; repeated calls have no effect."""
        if not self.prune_signals:
            self.prune_signals.append(signal.SIGTERM)
