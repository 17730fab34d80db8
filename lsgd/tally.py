"""Counts of what a model got right, kept on the device and added up as integers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]
"""`counts` (kinds,) and `loss` (), summed over the processes: as Tally.state has them."""


@dataclass(frozen=True)
class Scores:
    """What a tally says, once summed over all processes."""

    counts: dict[str, int]
    """Each kind of things counted, the one first that the loss is a mean over."""
    rates: dict[str, float]
    """The mean loss, and what follows from loss and counts, by the names in lsgd.rules.metric."""

    def named(self, split: str) -> dict[str, float]:
        """The rates as those of a split: train_loss, train_top1_error, …"""
        return {f"{split}_{name}": rate for name, rate in self.rates.items()}


class Tally:
    """The loss, and the counts of some kinds of things, over what this process has seen."""

    def __init__(self, kinds: int, device: torch.device) -> None:
        self.counts = torch.zeros(kinds, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, loss: Tensor, counts: Tensor) -> None:
        """Add a pass: the sum of its losses, shape (), and its counts, shape (kinds,)."""
        self.loss += loss.detach()
        self.counts += counts

    def state(self, sum_: Callable[[Tensor], None]) -> State:
        """The tally of all processes together, as tensors of their own."""
        counts, loss = self.counts.clone(), self.loss.clone()
        sum_(counts)
        sum_(loss)
        return {"counts": counts, "loss": loss}

    def restore(self, state: State) -> None:
        """Go on counting from a state."""
        self.counts.copy_(state["counts"])
        self.loss.copy_(state["loss"])

    def clear(self) -> None:
        """Start again from nothing."""
        self.counts.zero_()
        self.loss.zero_()


def difference(now: State, before: State) -> State:
    """The state of what was seen between two states."""
    return {key: now[key] - before[key] for key in now}
