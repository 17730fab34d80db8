"""The watch of lr schedules that a function of the script computes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from .record import Record

LONGEST = 1.0
"""The seconds after which no further step of a schedule is computed."""
AHEAD = 2**16
"""The most steps of a schedule whose lr is computed."""


class ScheduleWatch:
    """The watch of LambdaLRs, whose initial lr may be far from their highest one."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.functions: list[tuple[list[Any], list[Callable[[int], float]]]] = []
        """The initial lr and the function of each parameter group, by LambdaLR."""

    def install(self) -> None:
        """Keep the functions of each LambdaLR that the script makes."""
        self.record.wrap(LambdaLR, "__init__", after=self._note_scheduler)

    def _note_scheduler(self, _: Any, scheduler: LambdaLR, *__: Any, **___: Any) -> None:
        self.functions.append((scheduler.base_lrs, scheduler.lr_lambdas))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield for each LambdaLR the initial lr and highest factor of each parameter group."""
        for lrs, functions in self.functions:
            distinct = {id(each): each for each in functions}
            factors = {key: highest(each) for key, each in distinct.items()}
            yield {
                "kind": "schedule",
                "initial_lrs": [float(each) for each in lrs],
                "highest_factors": [factors[id(each)] for each in functions],
            }


def highest(function: Callable[[int], float]) -> float | None:
    """Return the highest factor of a schedule before it first falls; None if it goes on rising."""
    factors: list[float] = []
    # What fails behind the end of a schedule, or prints, is called after the training.
    with contextlib.redirect_stdout(None), contextlib.suppress(Exception):
        until = time.monotonic() + LONGEST
        for step in range(AHEAD):
            factors.append(float(function(step)))
            if factors[-1] < max(factors[-2:]):
                break
            if step == AHEAD - 1 or time.monotonic() > until:
                return None if factors[-1] > factors[-2:][0] else factors[-1]
    return max(factors, default=None)
