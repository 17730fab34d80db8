"""Work of a worker between reading the parameters and pushing: one gradient, or local steps.

A push is one flat tensor: the gradients of all parameters in memory order, the changes of the
carried states, and two flags. The first flag is NaN after a loss that is not finite; the second is
for the strategy to set.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.batchnorm import RunningStatistics
from lsgd.rules.exact_norm import exact_norm
from lsgd.strategy.inner import InnerOptimizerStates, views
from lsgd.workloads import CarriedState

NUM_FLAGS = 2
"""Number of flags at the end of a push."""


class Computation(Protocol):
    """Computation of a worker's push: a gradient, or the change by several local steps.

    It starts with `begin` and ends with `push`. The model holds the parameters that the worker has
    read before `begin` and after `push`.
    """

    def begin(self, worker: int, step: float, divisors: Iterable[int]) -> None:
        """Start computing a push for a worker that has read the model after `step` updates.

        The updates are those since the start of the run. One backward pass follows for each
        divisor.
        """

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a micro-batch's loss, which is summed over its examples."""

    def push(self) -> Tensor:
        """Return the computed push (gradient, carried-state changes, flags) as a new flat tensor.

        It has no -0.0. A sum with the zeros of other processes has no -0.0 either, so all processes
        get the same bits.
        """

    def state(self, comm: Comm) -> dict[str, Any]:
        """Return each worker's state that persists between its pushes, for a checkpoint.

        All processes call it, and process 0 receives the state.
        """

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the workers' state that persists between pushes from a checkpoint."""


class GradientComputation:
    """Computation whose push is one gradient, to which the server applies the optimizer."""

    def __init__(self, parameters: Sequence[nn.Parameter], parts: Sequence[CarriedState]) -> None:
        self.parts = parts
        self.flat = zero_push(parameters, parts)
        for parameter, gradient in zip(parameters, views(self.flat, parameters), strict=True):
            parameter.grad = gradient

    def begin(self, worker: int, step: float, divisors: Iterable[int]) -> None:
        """Store the divisors of the losses, one for each of the backward passes that follow."""
        self.divisors = iter(divisors)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a summed loss, divided by the next stored divisor."""
        mean = loss / next(self.divisors)
        mean.backward()
        self.flat[-NUM_FLAGS] = 0 * mean.detach()  # NaN if the loss is infinite or NaN

    def push(self) -> Tensor:
        """Return the gradient and the carried states' changes as a push; reset both to zeros."""
        for part, seen in state_sections(self.flat, self.parts):
            _take_pending_update(part, seen)
        push = self.flat + 0.0
        self.flat.zero_()
        return push

    def state(self, comm: Comm) -> dict[str, Any]:
        """Return an empty checkpoint state, since nothing persists between pushes."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore nothing from a checkpoint, since nothing persists between pushes."""


class LocalStepsComputation:
    """Computation whose push is the pseudo-gradient of several local optimizer steps.

    The server applies the outer rule to it. The pseudo-gradient is the parameters before the local
    steps minus those after them (Liu et al. 2024, asynchronous local SGD). Local step j of H uses
    the recipe's lr at v + j / H updates after the start of the run, if server 0 had made v updates
    when the worker read: the lr that follows from what the worker can know. A worker's optimizer
    state persists between its pushes, as it persists between the exchanges of DiLoCo. The running
    statistics change once per push, by the mean over its steps.
    """

    def __init__(
        self, recipe: Recipe, model: nn.Module, parts: Sequence[CarriedState], hosted: range
    ) -> None:
        self.recipe, self.parts = recipe, parts
        parameters = optim.trained_parameters(model)
        self.parameters = [parameter.detach() for parameter in parameters]
        self.gradient = zero_push(parameters, [])[:-NUM_FLAGS]
        for parameter, gradient in zip(parameters, views(self.gradient, parameters), strict=True):
            parameter.grad = gradient
        self.flat = zero_push(parameters, parts)
        self.read = views(self.flat, self.parameters)
        """Parameters that the worker has read; after `push` their difference from its own."""
        self.optimizer = optim.make_optimizer(
            model, norm=lambda: exact_norm(self.gradient), **asdict(recipe.optim)
        )
        self.momenta = InnerOptimizerStates(self.optimizer, hosted)

    def begin(self, worker: int, step: float, divisors: Iterable[int]) -> None:
        """Copy the parameters that the worker has read, and make its optimizer state current."""
        self.divisors, self.step, self.steps = iter(divisors), step, 0
        self.flat.zero_()
        torch._foreach_copy_(self.read, self.parameters)
        self.momenta.activate(worker)

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of a loss, and update the worker's parameters by a local step."""
        mean = loss / next(self.divisors)
        mean.backward()
        self.flat[-NUM_FLAGS] += 0 * mean.detach()
        ahead = self.steps / self.recipe.strategy.local_steps
        optim.set_lr(self.optimizer, self.recipe.lr(self.step + ahead))
        self.optimizer.step()
        self.gradient.zero_()
        self.steps += 1

    def push(self) -> Tensor:
        """Return the pseudo-gradient as a push, and reset the model to the parameters read."""
        copies = [parameter.clone() for parameter in self.parameters]
        torch._foreach_copy_(self.parameters, self.read)
        torch._foreach_sub_(self.read, copies)
        for part, seen in state_sections(self.flat, self.parts):
            _take_pending_update(part, seen)
            seen.div_(self.steps)
        return self.flat + 0.0

    def state(self, comm: Comm) -> dict[str, Any]:
        """Return the local optimizer state of every worker, for a checkpoint."""
        workers = range(self.recipe.workers)
        return {"workers": [self.momenta.gather_state(comm, worker) for worker in workers]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the local optimizer state of this process's workers from a checkpoint."""
        for worker in self.momenta.hosted:
            self.momenta.restore(worker, state["workers"][worker])


def open_computation(
    recipe: Recipe, model: nn.Module, parts: Sequence[CarriedState], hosted: range
) -> Computation:
    """Create the computation of pushes for a recipe, which takes over the model's gradients."""
    if recipe.strategy.pushes_deltas:
        return LocalStepsComputation(recipe, model, parts, hosted)
    return GradientComputation(optim.trained_parameters(model), parts)


def zero_push(parameters: Sequence[Tensor], parts: Sequence[CarriedState]) -> Tensor:
    """Return a flat tensor of zeros, as long as a push of these parameters and carried states."""
    sizes = [each.numel() for each in (*parameters, *(part.pending_update for part in parts))]
    return parameters[0].detach().new_zeros(sum(sizes) + NUM_FLAGS)


def _take_pending_update(part: CarriedState, out: Tensor) -> None:
    """Move the pending update of a carried state into `out`, and set it to zeros."""
    if isinstance(part, RunningStatistics):
        part.check_all_called()
    out.copy_(part.pending_update)
    part.pending_update.zero_()


def state_sections(
    push: Tensor, parts: Sequence[CarriedState]
) -> Iterator[tuple[CarriedState, Tensor]]:
    """Yield each carried state with the section of a flat push that has its change."""
    sizes = [part.pending_update.numel() for part in parts]
    rest = push[len(push) - NUM_FLAGS - sum(sizes) : len(push) - NUM_FLAGS]
    for part, seen in zip(parts, rest.split(sizes), strict=True):
        yield part, seen.view_as(part.pending_update)
