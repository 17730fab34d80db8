"""A strategy: the last process is a server, which has the optimizer and hosts no worker.

The others push the sums of their gradients and pull parameters. The server waits for all of them,
so the run is that of all-reduce. A Comm has sums alone: a push is one to which the server adds
nothing, and a pull one to which nobody else does.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, sum_
from lsgd.errors import Diverged, Preempted
from lsgd.recipe import Recipe
from lsgd.rules import optim, sampler
from lsgd.strategy import Task
from lsgd.strategy.tasks import synchronous_tasks
from lsgd.workloads import Workload


class ParameterServer:
    """The strategy of this process: a worker's, the server's, or both where it is alone."""

    def __init__(self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm) -> None:
        self.recipe, self.workload, self.comm = recipe, workload, comm
        workers = max(1, comm.world_size - 1)
        self.serves = comm.rank == comm.world_size - 1
        self.hosted = range(0)
        if comm.rank < workers:
            self.hosted = sampler.share(recipe.workers, workers, comm.rank)
        self.parts = workload.parts(model, self.hosted, comm)
        self.optimizer = optim.make_optimizer(model, **asdict(recipe.optim))
        self.parameters = list(model.parameters())
        # Behind the gradients: the loss times 0, and whether a process was told to leave.
        self.pushed = self.parameters[0].new_zeros(sum(p.numel() for p in self.parameters) + 2)
        # Behind the parameters: whether the run goes on, leaves, and the norm of the gradient.
        self.pulled = self.pushed.new_zeros(len(self.pushed) + 1)
        self.gradients, (self.flag, self.note) = self.pushed[:-2], self.pushed[-2:]
        for parameter, view in self._parts_of(self.gradients):
            parameter.grad = view
        self.next_step = 0

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """The hosted workers' part of each step: of the server, steps without passes."""
        return synchronous_tasks(self.recipe, self.workload, self.hosted, epoch, steps)

    def read(self, task: Task, *, leave: bool) -> None:
        """Clear the gradients; the parameters have been pulled when the last step ended."""
        self.divisor = task.divisor
        self.pushed.zero_()
        self.note.fill_(leave)

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients of this process's workers."""
        self.flag += 0 * loss.detach()
        (loss / self.divisor).backward()

    def give(self, task: Task) -> None:
        """Push, wait for the server's update, and pull."""
        sum_(self.comm, self.pushed)
        self.pulled.zero_()
        if self.serves:
            self._update(task)
        sum_(self.comm, self.pulled)
        *_, goes_on, self.leaving, self.norm = self.pulled.tolist()
        if not goes_on:
            raise Diverged(f"the loss or a gradient of step {task.step} is not finite")
        for parameter, values in self._parts_of(self.pulled[:-3]):
            parameter.detach().copy_(values)
        for part in self.parts:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1

    def _update(self, task: Task) -> None:
        goes_on = bool(self.pushed.isfinite().all())
        if goes_on:
            optim.set_lr(self.optimizer, self.recipe.lr(task.step))
            self.optimizer.step()
        for parameter, values in self._parts_of(self.pulled[:-3]):
            values.copy_(parameter.detach())
        norm = torch.linalg.vector_norm(self.gradients)
        self.pulled[-3:] = torch.stack((torch.tensor(goes_on), self.note, norm))

    def check(self) -> bool:
        """Raise Preempted if the server has replied so."""
        if self.leaving:
            raise Preempted
        return False

    def settle(self) -> None:
        """Bring the parts together; between two steps everything else is."""
        for part in self.parts:
            part.settle(partial(sum_, self.comm))

    def state(self) -> dict[str, Any]:
        """The state of the optimizer, brought from the server to all processes."""
        return self.comm.gather_objects(self.optimizer.state_dict() if self.serves else {})[-1]

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Take up the momentum, which only the server will use."""
        self.optimizer.load_state_dict(state)
        self.next_step = step

    def now(self) -> dict[str, float]:
        """The norm of the last gradient, as the server has replied."""
        return {"gradient_norm": self.norm}

    def timed(self) -> list[tuple[str, object, str]]:
        """The workers' wait for the server is communication."""
        return [
            ("optimizer", self, "read"),
            ("backward", self, "backward"),
            ("communication", self, "give"),
        ]

    def _parts_of(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter, and its view of a flat tensor."""
        views = flat.split([p.numel() for p in self.parameters])
        for parameter, view in zip(self.parameters, views, strict=True):
            yield parameter, view.view_as(parameter)
