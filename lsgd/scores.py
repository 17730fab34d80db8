"""The scores of an evaluation or a training epoch: exact counts, and the metrics of them."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Scores:
    """The counts and metrics of a training epoch or an evaluation, over all processes."""

    counts: dict[str, int]
    """The number of each kind of thing counted; the loss is a mean over the first kind."""
    metrics: dict[str, float]
    """The mean loss and the metrics computed from the counts, by the names in lsgd.rules.metric."""

    @property
    def rates(self) -> dict[str, float]:
        """The metrics, under the name that lsgd.api had for them in version 0.1; deprecated."""
        warnings.warn("Scores.rates is now Scores.metrics", DeprecationWarning, stacklevel=2)
        return self.metrics

    def with_prefix(self, split: str) -> dict[str, float]:
        """Return the metrics under names with a split as prefix, such as train_loss."""
        return {f"{split}_{name}": rate for name, rate in self.metrics.items()}


def named_by_set(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the metrics of several evaluation sets under names with the set as prefix."""
    names = (each.with_prefix(split) for split, each in scores.items())
    return {name: value for metrics in names for name, value in metrics.items()}
