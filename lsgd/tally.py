"""Counts of what a model got right, kept on the device and added up as integers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]
"""`counts` (kinds,), `loss` () and other sums, added up over the processes: as Tally.state has
them."""


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
        self.others: dict[str, Tensor] = {}

    def beside(self, name: str, size: int) -> Tensor:
        """Other sums, shape (size,), to add to: they begin, are saved and end with the counts."""
        self.others[name] = self.loss.new_zeros(size)
        return self.others[name]

    def add(self, loss: Tensor, counts: Tensor) -> None:
        """Add a pass: the sum of its losses, shape (), and its counts, shape (kinds,)."""
        self.loss += loss.detach()
        self.counts += counts

    def state(self, sum_: Callable[[Tensor], None]) -> State:
        """The tally of all processes together, as tensors of their own."""
        sums = {"counts": self.counts, "loss": self.loss} | self.others
        state = {name: values.clone() for name, values in sums.items()}
        for values in state.values():
            sum_(values)
        return state

    def restore(self, state: State) -> None:
        """Go on counting from a state, which need not have the other sums."""
        self.counts.copy_(state["counts"])
        self.loss.copy_(state["loss"])
        for name in self.others.keys() & state.keys():
            self.others[name].copy_(state[name])

    def clear(self) -> None:
        """Start again from nothing."""
        self.counts.zero_()
        self.loss.zero_()
        for values in self.others.values():
            values.zero_()


def difference(now: State, before: State) -> State:
    """The state of what was seen between two states."""
    return {key: now[key] - before[key] for key in now}
