"""Averages of the weights over a run, which are evaluated in place of the weights.

Polyak and Juditsky 1992 average over updates; an exponential moving average forgets the old ones,
and the mean over the ends of the last epochs (Kaddour 2022) takes few of them, far apart.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lsgd.rules.sampler import Pass


class AveragedWeights:
    """The part. Every process has all of it, since all update the model alike; no step is another
    for it. What an average keeps are `kept`, tensors by the number of their parameter."""

    name = "averaging"
    kept: list[Tensor]

    def __init__(self, model: nn.Module) -> None:
        self.weights = [parameter.detach() for parameter in model.parameters()]
        self.seen = self.weights[0].new_empty(0)
        self.updates = 0

    def means(self) -> list[Tensor]:
        """The average of each parameter as it is now."""
        raise NotImplementedError

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Meanwhile the model has the averages, and then its own weights again, bit by bit."""
        own = [weight.clone() for weight in self.weights]
        torch._foreach_copy_(self.weights, self.means())
        try:
            yield
        finally:
            torch._foreach_copy_(self.weights, own)

    def start_pass(self, each: Pass) -> None:
        """Nothing: a pass changes no weight."""

    def end_step(self, active_workers: int) -> None:
        """Take in the weights after an update."""
        self.updates += 1

    def settle(self, sum_: Callable[[Tensor], None]) -> None:
        """Nothing: the model goes on with its own weights."""

    def state(self, sum_: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """What is kept, and how many updates there were."""
        kept = {f"kept {number}": each.clone() for number, each in enumerate(self.kept)}
        return kept | {"updates": torch.tensor(self.updates)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        self.updates = int(state["updates"])
        for number, each in enumerate(self.kept):
            each.copy_(state[f"kept {number}"])


class MovingAverage(AveragedWeights):
    """mean <- mean + (1 - 2^(-1 / half_life)) (w - mean) after every update, from the first weights
    on: after `half_life` updates a weight counts half of what it did."""

    def __init__(self, model: nn.Module, half_life: float) -> None:
        super().__init__(model)
        self.share = 1 - 2 ** (-1 / half_life)
        self.kept = [weight.clone() for weight in self.weights]

    def means(self) -> list[Tensor]:
        """The moving averages."""
        return self.kept

    @torch.no_grad()
    def end_step(self, active_workers: int) -> None:
        """Move towards the weights after an update."""
        super().end_step(active_workers)
        torch._foreach_lerp_(self.kept, self.weights, self.share)


class LastEpochs(AveragedWeights):
    """The mean of the weights at the ends of the last `epochs` epochs, or of those there are;
    before the end of the first the weights themselves. `place` has the epoch of a step of the run,
    and its number in this epoch."""

    def __init__(
        self, model: nn.Module, epochs: int, place: Callable[[int], tuple[int, int]]
    ) -> None:
        super().__init__(model)
        self.epochs, self.place = epochs, place
        self.kept = [weight.new_zeros(epochs, *weight.shape) for weight in self.weights]

    def means(self) -> list[Tensor]:
        """The means over the epochs that are kept."""
        ended = min(self.place(self.updates)[0], self.epochs)
        return [kept[:ended].mean(0) for kept in self.kept] if ended else self.weights

    def end_step(self, active_workers: int) -> None:
        """At the end of an epoch keep the weights in place of those of the oldest."""
        super().end_step(active_workers)
        ended, rest = self.place(self.updates)
        if not rest:
            for kept, weight in zip(self.kept, self.weights, strict=True):
                kept[(ended - 1) % self.epochs].copy_(weight)
