"""Sums of losses and counts of correct results, kept on the device and added up exactly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MetricSumsState = dict[str, Tensor]
"""The type of sums over all processes, as MetricSums.state returns them.

`counts` has shape (kinds,), `loss` shape (); other sums have keys of their own.
"""


@dataclass(frozen=True)
class Scores:
    """The counts and metrics of a training epoch or an evaluation, over all processes."""

    counts: dict[str, int]
    """The number of each kind of thing counted; the loss is a mean over the first kind."""
    metrics: dict[str, float]
    """The mean loss and the metrics computed from the counts, by the names in lsgd.rules.metric."""

    @property
    def rates(self) -> dict[str, float]:
        """The metrics, under the name that lsgd.api had for them in version 0.1."""
        return self.metrics

    def with_prefix(self, split: str) -> dict[str, float]:
        """Return the metrics under names with a split as prefix, such as train_loss."""
        return {f"{split}_{name}": rate for name, rate in self.metrics.items()}


def named_by_set(scores: Mapping[str, Scores]) -> dict[str, float]:
    """Return the metrics of several evaluation sets under names with the set as prefix."""
    names = (each.with_prefix(split) for split, each in scores.items())
    return {name: value for metrics in names for name, value in metrics.items()}


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float dtype of a device: float64, or float32 where that is missing."""
    try:
        return torch.empty(0, dtype=torch.float64, device=device).dtype
    except (RuntimeError, TypeError):
        return torch.float32


class MetricSums:
    """A running sum of the loss and of several counts over the examples of this process."""

    def __init__(self, kinds: int, device: torch.device) -> None:
        self.counts = torch.zeros(kinds, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=widest_float(device), device=device)
        self.extra_sums: dict[str, Tensor] = {}

    def add_sum(self, name: str, size: int) -> Tensor:
        """Create a zero tensor of further sums, shape (size,), saved and reset with the counts."""
        self.extra_sums[name] = self.loss.new_zeros(size)
        return self.extra_sums[name]

    def add(self, loss: Tensor, counts: Tensor) -> None:
        """Add a micro-batch's summed loss, shape (), and counts, shape (kinds,), to the sums."""
        self.loss += loss.detach()
        self.counts += counts

    def state(self, sum_: Callable[[Tensor], None]) -> MetricSumsState:
        """Return copies of all metric sums, added up over the processes by `sum_`."""
        sums = {"counts": self.counts, "loss": self.loss} | self.extra_sums
        state = {name: values.clone() for name, values in sums.items()}
        for values in state.values():
            sum_(values)
        return state

    def restore(self, state: MetricSumsState) -> None:
        """Set the metric sums to those of a saved state, which may lack further sums."""
        self.counts.copy_(state["counts"])
        self.loss.copy_(state["loss"])
        for name in self.extra_sums.keys() & state.keys():
            self.extra_sums[name].copy_(state[name])

    def clear(self) -> None:
        """Reset all metric sums to 0."""
        self.counts.zero_()
        self.loss.zero_()
        for values in self.extra_sums.values():
            values.zero_()


def subtract_sums(now: MetricSumsState, before: MetricSumsState) -> MetricSumsState:
    """Subtract an earlier state of metric sums from a later one."""
    return {key: now[key] - before[key] for key in now}
