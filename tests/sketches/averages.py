"""A part: the mean of the weights over all updates, which is evaluated beside the weights.

Averaging is of Polyak and Juditsky 1992. A step knows nothing of it.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lsgd.comm import Comm
from lsgd.inputs import Batch
from lsgd.rules.sampler import Pass
from lsgd.workloads import Part, Sum
from lsgd.workloads.images import Images


class MeanOfWeights:
    """The part. All processes update the model alike, so each has all of it."""

    name = "mean_of_weights"

    def __init__(self, model: nn.Module) -> None:
        self.weights = dict(model.named_parameters())
        self.means = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self.updates = torch.zeros((), dtype=torch.int64)

    def start_pass(self, each: Pass) -> None:
        """Nothing: a pass changes no weight."""

    @torch.no_grad()
    def end_step(self, active_workers: int) -> None:
        """Take in the weights after an update."""
        self.updates += 1
        for name, mean in self.means.items():
            mean += (self.weights[name] - mean) / self.updates

    def settle(self, sum_: Sum) -> None:
        """Nothing: the means are whole on every process, and the model has its own weights."""

    def state(self, sum_: Sum) -> dict[str, Tensor]:
        """The means, and how many updates they are over."""
        return self.means | {"updates": self.updates}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from there."""
        for name, mean in self.means.items():
            mean.copy_(state[name])
        self.updates.copy_(state["updates"])


class AveragedImages(Images):
    """The workload of images, evaluated with the weights and with their mean."""

    sets: tuple[str, ...] = ("val", "averaged")

    def parts(self, model: nn.Module, hosted: range, comm: Comm) -> tuple[Part, ...]:
        """Beside BN's statistics the mean of the weights."""
        self.mean = MeanOfWeights(model)
        return (*super().parts(model, hosted, comm), self.mean)

    def loss(self, model: nn.Module, batch: Batch, each: Pass) -> tuple[Tensor, Tensor]:
        """As of images; `averaged` has the validation images once more, with other weights."""
        averaged = partial(functional_call, model, self.mean.means)
        return super().loss(averaged if each.split == "averaged" else model, batch, each)
