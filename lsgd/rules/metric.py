"""The rates of an evaluation: how they are called, and what the number of a run is made of.

No torch is needed to know it. The first evaluation set of a workload is named val, and its rates
are `val_loss`, `val_top1_error`, … in rows and checkpoints.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A rate that each evaluation gives; the lower it is, the better."""

    name: str
    """The key of the rate, behind the name of an evaluation set: val_NAME."""
    words: str
    unit: str = ""
    last_epochs: int = 1
    """The number of a run is the median over so many of its last evaluated epochs."""

    @property
    def key(self) -> str:
        """The key of the rate of the first evaluation set."""
        return f"val_{self.name}"

    @property
    def whose(self) -> str:
        """The epochs that the number of a run is made of, in words."""
        if self.last_epochs == 1:
            return "of the last epoch"
        return f"median of the last {self.last_epochs} epochs"

    def amount(self, value: float) -> str:
        """A value of this rate with its unit.

        >>> METRICS["top1_error"].amount(23.5)
        '23.50 %'
        """
        return f"{value:.2f} {self.unit}".rstrip()

    def number(self, rates: Mapping[int, Mapping[str, Any]]) -> float:
        """The number of a run of which these are the rates of each epoch, by its number from 1.

        Not every epoch need have been evaluated, but one must.

        >>> errors = [90.0, 9.0, 8.0, 30.0, 7.0, 8.5]
        >>> METRICS["top1_error"].number({i: {"val_top1_error": e} for i, e in enumerate(errors)})
        8.5
        """
        key = self.key
        values: list[float] = [rates[epoch][key] for epoch in sorted(rates) if key in rates[epoch]]
        return statistics.median(values[-self.last_epochs :])


METRICS = {
    each.name: each
    for each in (
        Metric("loss", "loss"),
        # Goyal et al. 2017, section 5.1: the median error of the last 5 epochs.
        Metric("top1_error", "top-1 error", "%", last_epochs=5),
        Metric("top5_error", "top-5 error", "%", last_epochs=5),
        Metric("perplexity", "perplexity"),
    )
}
"""All rates by their names; a run of which nothing else is known is of TOP1."""

TOP1 = METRICS["top1_error"]
