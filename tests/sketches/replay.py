"""A strategy: asynchronous SGD of some workers, replayed by one process in an order drawn ahead.

A worker reads the parameters, computes a gradient with them and pushes it. Meanwhile others have
pushed, so that its gradient is stale. Each push is an update; then the worker is released: it gets
the next ticket, which is a batch of the epoch, and reads again. An epoch ends when no ticket is
left and nobody holds one. The recipe has workers=1, so that its batch and lr are of one update.
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
from lsgd.rules import optim, philox, sampler
from lsgd.strategy import Task
from lsgd.workloads import Workload

LAST_WORD = 9
"""Keeps the draws of this file apart from those of lsgd.rules."""


def pushes(tickets: int, workers: int, *, seed: int, epoch: int) -> list[tuple[int, int]]:
    """The worker and the ticket of each push of an epoch, in their order.

    >>> pushes(5, 1, seed=0, epoch=0)
    [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
    """
    draws = philox.words((range(tickets), epoch, 0, LAST_WORD), key=seed)[0]
    held = {worker: worker for worker in range(min(workers, tickets))}
    ahead = iter(range(len(held), tickets))
    made = []
    for draw in draws:
        # Of those who hold a ticket, so that none is left at the end.
        worker = sorted(held)[int(draw) % len(held)]
        made.append((worker, held.pop(worker)))
        if (ticket := next(ahead, None)) is not None:
            held[worker] = ticket
    return made


class Replay:
    """The strategy. The model holds the newest parameters, but while a gradient is computed."""

    workers = 4

    def __init__(self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm) -> None:
        assert recipe.workers == comm.world_size == 1
        self.recipe, self.workload, self.comm = recipe, workload, comm
        self.hosted = range(1)
        self.parts = workload.parts(model, self.hosted, comm)
        self.optimizer = optim.make_optimizer(model, **asdict(recipe.optim))
        self.parameters = list(model.parameters())
        self.newest = [p.detach().clone() for p in self.parameters]
        self.read_by: dict[int, list[Tensor]] = {}
        """What each worker has read that has not yet pushed since; others start with the epoch."""
        self.leaving, self.next_step = False, 0

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """One push each."""
        recipe, order = self.recipe, self.workload.order(epoch)
        self.pushes = pushes(recipe.steps_per_epoch, self.workers, seed=recipe.seed, epoch=epoch)
        for step in steps:
            _, ticket = self.pushes[step % recipe.steps_per_epoch]
            passes = sampler.step_passes(
                order,
                epoch=epoch,
                step=ticket,
                workers=1,
                worker_batch=recipe.worker_batch,
                hosted=self.hosted,
                workers_per_pass=1,
            )
            divisor = sum(len(each.examples) for each in passes)
            yield Task(step, divisor, active_workers=1, passes=passes)

    def read(self, task: Task, *, leave: bool) -> None:
        """Let the model hold what the worker whose push comes now has read."""
        self.divisor, self.leaving = task.divisor, leave
        of_epoch = task.step % self.recipe.steps_per_epoch
        if of_epoch == 0:
            self.read_by = {each: self._copies() for each in range(self.workers)}
        self.worker, _ = self.pushes[of_epoch]
        self.newest = self._copies()
        self._write(self.read_by[self.worker])
        self.optimizer.zero_grad()
        self.finite = True

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient with what the worker has read."""
        self.finite &= bool(loss.isfinite())
        (loss / self.divisor).backward()

    def give(self, task: Task) -> None:
        """Apply the push to the newest parameters, and let the worker read what this makes."""
        self._write(self.newest)
        norms = [torch.linalg.vector_norm(p.grad) for p in self.parameters]
        self.norm = torch.linalg.vector_norm(torch.stack(norms)).item()
        if not self.finite or not self.norm < torch.inf:
            raise Diverged(f"the loss or a gradient of step {task.step} is not finite")
        optim.set_lr(self.optimizer, self.recipe.lr(task.step))
        self.optimizer.step()
        for part in self.parts:
            part.end_step(task.active_workers)
        self.read_by[self.worker] = self._copies()
        self.next_step = task.step + 1

    def check(self) -> bool:
        """Raise Preempted if this process was told to leave."""
        if self.leaving:
            raise Preempted
        return False

    def settle(self) -> None:
        """Bring the parts into the model, which holds the newest parameters."""
        for part in self.parts:
            part.settle(partial(sum_, self.comm))

    def state(self) -> dict[str, Any]:
        """The momentum, and within an epoch what the workers have read."""
        within = self.next_step % self.recipe.steps_per_epoch
        return self.optimizer.state_dict() | {"read_by": self.read_by if within else {}}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Let every worker have read what it had."""
        self.optimizer.load_state_dict({key: state[key] for key in ("state", "param_groups")})
        self.read_by = {worker: list(read) for worker, read in state["read_by"].items()}
        self.next_step = step

    def now(self) -> dict[str, float]:
        """The norm of the gradient that was pushed last."""
        return {"gradient_norm": self.norm}

    def timed(self) -> list[tuple[str, object, str]]:
        """Nothing is communicated; what a push waits for is the optimizer."""
        return [
            ("optimizer", self, "read"),
            ("backward", self, "backward"),
            ("optimizer", self, "give"),
        ]

    def _copies(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def _write(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
