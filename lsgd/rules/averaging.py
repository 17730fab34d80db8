"""Averages of the weights over a run, which are evaluated instead of the weights.

Polyak and Juditsky 1992 average over all updates; an exponential moving average forgets old ones,
and the mean over the ends of the last epochs (Kaddour 2022) takes a few that are far apart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lsgd.rules.sampler import MicroBatch


def mean_of_states(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several state_dicts of one network, each of which is read once.

    The mean is taken in float64. Integers, such as counts of batches, are those of the first.
    """
    means: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for number, state in enumerate(states, 1):
        for key, value in state.items():
            if key not in means:
                dtypes[key] = value.dtype
                means[key] = value.double() if value.is_floating_point() else value
            elif value.is_floating_point():
                means[key] = means[key] + (value.double() - means[key]) / number
    return {key: mean.to(dtypes[key]) for key, mean in means.items()}


class AveragedWeights:
    """The base class of carried states that average a model's weights over a run.

    Every process holds all of it, since all update the model equally. `stored` is a tensor per
    trained parameter, in the order of the model's parameters.
    """

    name = "averaging"
    stored: list[Tensor]

    def __init__(self, model: nn.Module) -> None:
        self.weights = [each.detach() for each in model.parameters() if each.requires_grad]
        self.pending_update = self.weights[0].new_empty(0)
        self.updates = 0

    def means(self) -> list[Tensor]:
        """Return the current average of each parameter of the model."""
        raise NotImplementedError

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Swap averaged weights into the model in this context; then restore its own exactly."""
        own = [weight.clone() for weight in self.weights]
        torch._foreach_copy_(self.weights, self.means())
        try:
            yield
        finally:
            torch._foreach_copy_(self.weights, own)

    def start_micro_batch(self, each: MicroBatch) -> None:
        """Do nothing, since a micro-batch changes no weight."""

    def end_step(self, active_workers: int) -> None:
        """Count an update of the model; subclasses also average its new weights."""
        self.updates += 1

    def write_to_model(self, sum_: Callable[[Tensor], None]) -> None:
        """Do nothing, since the model keeps its own weights outside evaluations."""

    def state(self, sum_: Callable[[Tensor], None]) -> dict[str, Tensor]:
        """Return the stored weights and the number of updates, for a checkpoint."""
        kept = {f"kept {number}": each.clone() for number, each in enumerate(self.stored)}
        return kept | {"updates": torch.tensor(self.updates)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load the stored weights and the number of updates from a checkpoint's state."""
        self.updates = int(state["updates"])
        for number, each in enumerate(self.stored):
            each.copy_(state[f"kept {number}"])


class MovingAverage(AveragedWeights):
    """An exponential moving average of a model's weights, from the initial weights on.

    After every update mean <- mean + (1 - 2^(-1 / half_life)) (w - mean): after `half_life` further
    updates the weight of an update in the mean is halved. It is moved after every `every`-th update
    only, then by 1 - 2^(-every / half_life).
    """

    def __init__(self, model: nn.Module, half_life: float, every: int = 1) -> None:
        super().__init__(model)
        self.every, self.share = every, 1 - 2 ** (-every / half_life)
        self.stored = [weight.clone() for weight in self.weights]

    def means(self) -> list[Tensor]:
        """Return the exponential moving average of each parameter of the model."""
        return self.stored

    @torch.no_grad()
    def end_step(self, active_workers: int) -> None:
        """Move the weight averages towards the model's weights after an update."""
        super().end_step(active_workers)
        if self.updates % self.every:
            return
        torch._foreach_lerp_(self.stored, self.weights, self.share)


class LastEpochsAverage(AveragedWeights):
    """The mean of a model's weights at the ends of the last `epochs` epochs.

    If fewer have ended, it is the mean over those; before the first end, the current weights.
    `place` maps a step of the run to its epoch and its number in the epoch.
    """

    def __init__(
        self, model: nn.Module, epochs: int, place: Callable[[int], tuple[int, int]]
    ) -> None:
        super().__init__(model)
        self.epochs, self.place = epochs, place
        self.stored = [weight.new_zeros(epochs, *weight.shape) for weight in self.weights]

    def means(self) -> list[Tensor]:
        """Return the mean of each parameter over the ends of the last epochs."""
        ended = min(self.place(self.updates)[0], self.epochs)
        return [kept[:ended].mean(0) for kept in self.stored] if ended else self.weights

    def end_step(self, active_workers: int) -> None:
        """Store the weights at the end of an epoch in place of the oldest stored ones."""
        super().end_step(active_workers)
        ended, rest = self.place(self.updates)
        if not rest:
            for kept, weight in zip(self.stored, self.weights, strict=True):
                kept[(ended - 1) % self.epochs].copy_(weight)
