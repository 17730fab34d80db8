"""Hogwild: processes that update one model in the memory which they share, without a lock (Niu et
al. 2011).

Each process has a worker, which takes every k-th batch of the epoch, computes a gradient with the
numbers that are there while it does, and subtracts it in place. Another worker may do the same to
the same numbers at that moment; then one of the two updates of a number is lost. What comes out
depends on which process is where when, down to single numbers, and nothing records it: **two runs
differ, and none can be made again**. The paper's theory is of sparse gradients, which seldom meet;
those of most networks here are dense. strategy=async with strategy.order=live is what records.

What the workers count lies in the same memory, a row of the board for each, which it alone writes.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lsgd.comm import Comm, sum_
from lsgd.errors import Diverged, PeerLost, Preempted, Refused
from lsgd.job import preemption
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.sampler import Pass
from lsgd.strategy import Task
from lsgd.strategy.guard import LOWER_LR
from lsgd.strategy.neighbours import Neighbours
from lsgd.strategy.shard import in_memory
from lsgd.strategy.tasks import ticket_examples, weight
from lsgd.tally import State, Tally
from lsgd.workloads import Workload

GIVEN, STOPPED, TOLD, BAD, NORM, LOSS, COUNTS = range(7)
"""The columns of the board, of a worker: how many tickets of this epoch it has given, whether it
has stopped, whether it was told to leave, 1 + the step of an update that is not finite or else 0,
the norm of its last gradient, and the sum of its losses; from COUNTS on, what it has counted."""
LOOK = 0.01
"""Seconds between two looks of a worker that waits for the others to stop."""


class Hogwild:
    """The strategy of hogwild. The parameters of the model lie in the memory of all processes."""

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        self.parameters = list(model.parameters())
        device = self.parameters[0].device
        if device.type != "cpu":
            raise Refused(
                f"strategy=hogwild updates a model in the memory of the CPU, and this one is on "
                f"{device.type}; write device=cpu"
            )
        self.recipe, self.workload, self.comm, self.tally = recipe, workload, comm, tally
        self.hosted = range(comm.rank, comm.rank + 1)
        self.parts = workload.parts(model, self.hosted, comm)
        shape = (recipe.workers, COUNTS + len(tally.counts))
        flat = torch.cat([in_memory(parameter) for parameter in self.parameters])
        cells = shape[0] * shape[1]
        self.neighbours = Neighbours(comm, 8 * cells + flat.nbytes)
        memory = self.neighbours.memory
        self.board = np.frombuffer(memory, np.float64, cells).reshape(shape)
        """What all workers have to say now, shape (workers, columns)."""
        self.rows = np.zeros(shape)
        """What they had to say when they last met."""
        self.row = self.board[comm.rank]
        self.row[STOPPED] = 1
        shared = torch.frombuffer(memory, dtype=flat.dtype, offset=8 * cells)
        if comm.rank == 0:
            shared.copy_(flat)
        self.own = torch.zeros_like(flat)
        """The gradients of this process's worker, as they lie in memory."""
        begins = accumulate((each.numel() for each in self.parameters), initial=0)
        for parameter, (begin, _) in zip(self.parameters, pairwise(begins), strict=True):
            size, stride = parameter.size(), parameter.stride()
            parameter.data = shared.as_strided(size, stride, begin)
            parameter.grad = self.own.as_strided(size, stride, begin)
        self.norm = self.own.new_zeros(())
        self.optimizer = optim.make_optimizer(model, norm=lambda: self.norm, **asdict(recipe.optim))
        self.epoch, self.given = 0, [0 for _ in range(recipe.workers)]
        """How many tickets of an epoch each worker had given when they last met."""
        self.steps: list[int] = []
        """The steps of the run that are made from then on."""
        self.next_step = 0
        self.pids = ""
        comm.gather_objects(None)  # nobody reads the memory before process 0 has written it

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """A task for each ticket of this process's worker, which has every k-th of them."""
        if epoch != self.epoch:
            self.epoch, self.given = epoch, [0 for _ in self.given]
        self.steps, self.before = steps, sum(self.given)
        given = self.given[self.comm.rank]
        self.row[:] = 0
        self.row[GIVEN], self.row[STOPPED] = given, not steps
        self._count()
        self._meet()  # or the first would change the model that others evaluate or save
        tickets = range(self.comm.rank, self.before + len(steps), self.recipe.workers)
        return self._tasks(tickets[given:])

    def _tasks(self, tickets: range) -> Iterator[Task]:
        for ticket in tickets:
            examples = ticket_examples(self.recipe, self.workload, self.epoch, ticket)
            step = self.epoch * self.recipe.steps_per_epoch + ticket
            divisor = weight(self.workload, examples)
            passes = [Pass(self.epoch, examples, self.hosted, ticket)]
            yield Task(step, divisor, active_workers=1, passes=passes)

    def read(self, task: Task, *, leave: bool) -> None:
        """Clear the gradient; the model is what it is, and others change it meanwhile."""
        if leave:
            self.row[TOLD] = 1
        self.own.zero_()
        self.divisor = task.divisor

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient."""
        self.mean = loss / self.divisor
        self.mean.backward()

    def give(self, task: Task) -> None:
        """Update the model, at the lr of the number of updates that all workers have made."""
        self.norm = torch.linalg.vector_norm(self.own)
        self.row[NORM] = self.norm
        step = self.steps[self._made()]
        if torch.isfinite(self.mean.detach() + self.norm):
            optim.set_lr(self.optimizer, self.recipe.lr(step))
            self.optimizer.step()
        else:
            self.row[BAD] = 1 + step
        for part in self.parts:
            # Each worker moves running statistics of its own, whose mean is the model's.
            part.end_step(self.recipe.workers)
        self._count()
        self.row[GIVEN] += 1
        # Among the updates since this worker's last one there may be one after which a row is due.
        done = self.steps[self._made() - 1] + 1
        due = done - done % self.recipe.log_steps
        self.next_step = due if due > self.next_step else done

    def check(self) -> bool:
        """Raise what any worker has met or was told, and PeerLost if its process has ended."""
        self.neighbours.check()
        if self.board[:, [TOLD, BAD]].any():
            self.settle()
        return False

    def settle(self) -> None:
        """Wait until no worker makes updates any more.

        Raises Diverged, Preempted and PeerLost, for which one may have stopped early.
        """
        if not self.row[STOPPED]:
            self.row[STOPPED] = 1
            self._wait()
            self._meet()
            self._end()
        for part in self.parts:
            part.settle(partial(sum_, self.comm))

    def state(self) -> dict[str, Any]:
        """What the optimizer has, and how many tickets of the epoch each worker has given."""
        return self.optimizer.state_dict() | {"given": torch.tensor(self.given)}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on with the tickets of the epoch that are left, of each worker its own."""
        groups = {name: state[name] for name in ("state", "param_groups")}
        self.optimizer.load_state_dict(groups)
        self.next_step = step
        self.epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        self.given = [given if of_epoch else 0 for given in state["given"].tolist()]

    def counted(self) -> State:
        """What all workers have counted in this epoch: while they run, as far as can be seen."""
        rows = self.rows if self.row[STOPPED] else self.board
        loss, *counts = rows[:, LOSS:].sum(axis=0)
        return {
            "counts": torch.tensor(counts, dtype=torch.int64),
            "loss": torch.tensor(loss, dtype=torch.float64),
        }

    def keep(self, folder: Path) -> dict[str, str]:
        """Nothing that could be made again by it; the row has the pids of all processes."""
        return {"order": "not recorded: two runs differ", "pids": self.pids}

    def now(self) -> dict[str, float | list[int]]:
        """The norm of this process's last gradient."""
        return {"gradient_norm": float(self.row[NORM])}

    def timed(self) -> list[tuple[str, object, str]]:
        """There is no communication."""
        return [
            ("optimizer", self, "read"),
            ("backward", self, "backward"),
            ("optimizer", self, "give"),
        ]

    def _made(self) -> int:
        """How many updates all workers have made since they last met."""
        return int(self.board[:, GIVEN].sum()) - self.before

    def _count(self) -> None:
        """Let the others know what this worker has counted."""
        self.row[LOSS], self.row[COUNTS:] = self.tally.loss, self.tally.counts

    def _meet(self) -> None:
        """Learn what all workers have to say, once all are here."""
        everyone = self.comm.gather_objects((os.getpid(), self.row.tolist()))
        self.pids = " ".join(str(pid) for pid, _ in everyone)
        self.rows = np.array([row for _, row in everyone])

    def _wait(self) -> None:
        """Wait until all have stopped, as long as one of them makes updates."""
        made, since = self._made(), time.monotonic()
        while not self.board[:, STOPPED].all():
            self.neighbours.check()
            if preemption.told():
                self.row[TOLD] = 1
            time.sleep(LOOK)
            if self._made() > made:
                made, since = self._made(), time.monotonic()
            elif time.monotonic() - since > self.recipe.comm.timeout:
                silent = ", ".join(map(str, np.flatnonzero(self.board[:, STOPPED] == 0)))
                raise PeerLost(
                    f"process {silent} has made no update for {self.recipe.comm.timeout:g} s; it "
                    "hangs or is slower than comm.timeout allows, the checkpoint is intact, and "
                    "the same words and run_dir resume it"
                )

    def _end(self) -> None:
        """Note how far the run has come; raise what has ended it."""
        self.given = [int(given) for given in self.rows[:, GIVEN]]
        if made := sum(self.given) - self.before:
            self.next_step = self.steps[made - 1] + 1
        bad = self.rows[:, BAD]
        if bad.any():
            raise Diverged(
                f"the loss or a gradient of step {int(bad[bad > 0].min()) - 1} is not finite, and "
                f"nothing was saved since; {LOWER_LR}"
            )
        if self.rows[:, TOLD].any():
            raise Preempted
