"""Early stopping by patience: a run ends once its validation metric no longer improves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EarlyStop:
    """The end of a run whose metric has not improved for as many evaluations as its patience."""

    epoch: int
    """The epoch, counted from 1, after whose evaluation the run stops."""
    best_epoch: int
    """The epoch with the lowest value; 0 if no value was a number."""


def early_stop(
    metrics: Mapping[int, Mapping[str, Any]], key: str, patience: int
) -> EarlyStop | None:
    """Return where a run stops by the metrics of its epochs, or None if it goes on.

    Only a value below all before it is an improvement; NaN, and None in its place, are none. Epochs
    without an evaluation do not count.

    >>> losses = {2: 3.0, 4: 2.0, 6: 2.0, 8: 2.5, 10: 1.0}
    >>> early_stop({epoch: {"val_loss": loss} for epoch, loss in losses.items()}, "val_loss", 2)
    EarlyStop(epoch=8, best_epoch=4)
    """
    best, best_epoch, unimproved = float("inf"), 0, 0
    for epoch in sorted(metrics):
        if key not in metrics[epoch]:
            continue
        value = metrics[epoch][key]
        if value is not None and value < best:
            best, best_epoch, unimproved = value, epoch, 0
            continue
        unimproved += 1
        if unimproved >= patience:
            return EarlyStop(epoch, best_epoch)
    return None
