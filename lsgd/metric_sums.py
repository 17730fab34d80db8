"""Sums of losses and counts of correct results, kept on the device and added up exactly."""

from collections.abc import Callable

import torch
from torch import Tensor

MetricSumsState = dict[str, Tensor]
"""The type of sums over all processes, as MetricSums.state returns them.

`counts` has shape (kinds,), `loss` shape (); other sums have keys of their own.
"""


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
