"""What a worker does between reading the parameters and pushing: a gradient, or local steps.

Either makes one flat tensor of a push: the gradients of all parameters as they lie in memory, what
the parts have seen, and two flags. The first is NaN after a loss that is not finite; the second is
left to the engine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.strategy.inner import OwnMomenta, views
from lsgd.workloads import Part

FLAGS = 2
"""The numbers of a push that are neither of a parameter nor of a part."""


class Computation(Protocol):
    """From `begin` to `push` the model holds what the worker has read, and after it again."""

    def begin(self, worker: int, step: float, divisors: Iterable[int]) -> None:
        """A worker has read the model, after so many updates of the run, and will make a backward
        pass for each of these divisors."""

    def backward(self, loss: Tensor) -> None:
        """Make the backward pass of a loss that is summed over its examples."""

    def push(self) -> Tensor:
        """What is to be pushed, in a tensor of its own; it has no -0.0, which a sum with the zeros
        of other processes has not either."""

    def state(self, comm: Comm) -> dict[str, Any]:
        """What outlasts a push, for a checkpoint; all processes call it, and process 0 has it."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take up such a state."""


class Gradient:
    """One gradient, by which the server makes an update with the recipe's optimizer."""

    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[Part]) -> None:
        self.parts = parts
        self.flat = zeros(parameters, parts)
        for parameter, gradient in zip(parameters, views(self.flat, parameters), strict=True):
            parameter.grad = gradient

    def begin(self, worker: int, step: float, divisors: Iterable[int]) -> None:
        """The pushes of one update follow each other, each of one backward pass."""
        self.divisors = iter(divisors)

    def backward(self, loss: Tensor) -> None:
        """Make the backward pass of the mean loss of the update."""
        mean = loss / next(self.divisors)
        mean.backward()
        self.flat[-FLAGS] = 0 * mean.detach()  # which is NaN, if the loss is infinite or NaN

    def push(self) -> Tensor:
        """The gradient; the next one begins with zeros."""
        for part, seen in seen_in(self.flat, self.parts):
            seen.copy_(part.seen)
            part.seen.zero_()
        push = self.flat + 0.0
        self.flat.zero_()
        return push

    def state(self, comm: Comm) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up nothing."""


class LocalSteps:
    """Updates of the worker's own copy, and then the way that it has gone, backwards: the gradient
    of the outer rule (Liu et al. 2024, asynchronous local SGD).

    Local step j of H is made at the lr of the recipe v + j / H updates after the beginning of the
    run, if server 0 had made v of them when the worker read: the lr that follows from what the
    worker knows. A worker's momentum, or what else the optimizer has, outlasts its pushes, as it
    outlasts the exchanges of DiLoCo. The running statistics move once for each push, by the mean
    over its steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        parts: Sequence[Part],
        hosted: range,
    ) -> None:
        self.recipe, self.parts = recipe, parts
        parameters = list(model.parameters())
        self.parameters = [parameter.detach() for parameter in parameters]
        self.gradient = zeros(parameters, [])[:-FLAGS]
        for parameter, gradient in zip(parameters, views(self.gradient, parameters), strict=True):
            parameter.grad = gradient
        self.flat = zeros(parameters, parts)
        self.read = views(self.flat, self.parameters)
        """What the worker has read, and at the end the way from where it is to there."""
        self.optimizer = optim.make_optimizer(
            model, norm=lambda: torch.linalg.vector_norm(self.gradient), **asdict(recipe.optim)
        )
        self.momenta = OwnMomenta(self.optimizer, hosted)

    def begin(self, worker: int, step: float, divisors: Iterable[int]) -> None:
        """Keep what the worker has read, and let it have its momentum."""
        self.divisors, self.step, self.steps = iter(divisors), step, 0
        self.flat.zero_()
        torch._foreach_copy_(self.read, self.parameters)
        self.momenta.take(worker)

    def backward(self, loss: Tensor) -> None:
        """Make a local step."""
        mean = loss / next(self.divisors)
        mean.backward()
        self.flat[-FLAGS] += 0 * mean.detach()
        ahead = self.steps / self.recipe.strategy.local_steps
        optim.set_lr(self.optimizer, self.recipe.lr(self.step + ahead))
        self.optimizer.step()
        self.gradient.zero_()
        self.steps += 1

    def push(self) -> Tensor:
        """The way back; the model holds again what the worker has read."""
        copies = [parameter.clone() for parameter in self.parameters]
        torch._foreach_copy_(self.parameters, self.read)
        torch._foreach_sub_(self.read, copies)
        for part, seen in seen_in(self.flat, self.parts):
            seen.copy_(part.seen / self.steps)
            part.seen.zero_()
        return self.flat + 0.0

    def state(self, comm: Comm) -> dict[str, Any]:
        """What the optimizer has of every worker."""
        workers = range(self.recipe.workers)
        return {"workers": [self.momenta.gathered(comm, worker) for worker in workers]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what it has of the hosted workers."""
        for worker in self.momenta.hosted:
            self.momenta.restore(worker, state["workers"][worker])


def open_work(
    recipe: Recipe, model: nn.Module, parts: Sequence[Part], hosted: range
) -> Computation:
    """What the workers of a recipe do, of which this process hosts some; from now on it owns the
    gradients of the model."""
    if recipe.strategy.pushes_ways:
        return LocalSteps(recipe, model, parts, hosted)
    return Gradient(list(model.parameters()), parts)


def zeros(parameters: Sequence[Tensor], parts: Sequence[Part]) -> Tensor:
    """A push that says nothing, in one dimension."""
    sizes = [each.numel() for each in (*parameters, *(part.seen for part in parts))]
    return parameters[0].detach().new_zeros(sum(sizes) + FLAGS)


def seen_in(push: Tensor, parts: Sequence[Part]) -> Iterator[tuple[Part, Tensor]]:
    """Each part, and what a push has for it."""
    sizes = [part.seen.numel() for part in parts]
    rest = push[len(push) - FLAGS - sum(sizes) : len(push) - FLAGS]
    for part, seen in zip(parts, rest.split(sizes), strict=True):
        yield part, seen.view_as(part.seen)
