"""Hogwild: processes update one model in shared memory without locks (Niu et al. 2011).

Each process has one worker, which takes every k-th batch of the epoch, computes a gradient with the
parameters as they change meanwhile, and subtracts it in place. Another worker may update the same
element at that moment; then one of the two updates is lost. The result depends on the timing of the
processes, down to single elements, and nothing records it: **two runs differ, and no run can be
reproduced**. The paper's theory is of sparse gradients, which seldom overlap; those of most
networks here are dense. strategy=async with strategy.order=live records its order.

The metric sums are in the same memory: the board has a row for each worker, which only that worker
writes.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lsgd.comm import RERUN, Comm, all_reduce_
from lsgd.errors import PeerLostError, PreemptedError, UsageError
from lsgd.job import preemption
from lsgd.metric_sums import MetricSums, MetricSumsState
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.exact_norm import exact_norm
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy import StepTask
from lsgd.strategy.guard import divergence
from lsgd.strategy.inner import views
from lsgd.strategy.shard import flat_view
from lsgd.strategy.shared_memory import SharedMemoryGroup
from lsgd.strategy.tasks import gradient_weight, ticket_batches
from lsgd.workloads import Workload

GIVEN, STOPPED, STOP_REQUESTED, NONFINITE, NORM, LOSS, COUNTS = range(7)
"""Columns of the board, whose rows are the workers.

GIVEN: number of tickets of this epoch that the worker has finished. STOPPED: whether it has
stopped. STOP_REQUESTED: whether it received a stop request. NONFINITE: 1 + the step of an update
that is not finite, or 0. NORM: norm of its last gradient. LOSS: sum of its losses. From COUNTS on:
its counts.
"""
LOOK = 0.01
"""Seconds between two checks by a worker that waits for the others to stop."""


class Hogwild:
    """Hogwild strategy: processes update one model in shared memory without locks."""

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        self.parameters = optim.trained_parameters(model)
        device = self.parameters[0].device
        if device.type != "cpu":
            raise UsageError(
                f"strategy=hogwild updates a model in CPU memory, and this model is on "
                f"{device.type}; write device=cpu"
            )
        self.recipe, self.workload, self.comm, self.tally = recipe, workload, comm, tally
        self.hosted = range(comm.rank, comm.rank + 1)
        self.carried_states = workload.carried_states(model, self.hosted, comm)
        shape = (recipe.workers, COUNTS + len(tally.counts))
        flat = torch.cat([flat_view(parameter) for parameter in self.parameters])
        cells = shape[0] * shape[1]
        self.neighbours = SharedMemoryGroup(comm, 8 * cells + flat.nbytes)
        memory = self.neighbours.memory
        self.board = np.frombuffer(memory, np.float64, cells).reshape(shape)
        """Current state of all workers in shared memory, shape (workers, columns)."""
        self.rows = np.zeros(shape)
        """State of all workers at the last synchronization, shape (workers, columns)."""
        self.row = self.board[comm.rank]
        self.row[STOPPED] = 1
        shared = torch.frombuffer(memory, dtype=flat.dtype, offset=8 * cells)
        if comm.rank == 0:
            shared.copy_(flat)
        self.own = torch.zeros_like(flat)
        """Gradients of this process's worker in memory order."""
        values, gradients = (views(each, self.parameters) for each in (shared, self.own))
        for parameter, value, own in zip(self.parameters, values, gradients, strict=True):
            parameter.data, parameter.grad = value, own
        self.norm = self.own.new_zeros(())
        self.optimizer = optim.make_optimizer(model, norm=lambda: self.norm, **asdict(recipe.optim))
        self.epoch, self.given = 0, [0 for _ in range(recipe.workers)]
        """Number of tickets of the epoch finished by each worker at the last synchronization."""
        self.steps: list[int] = []
        """Steps of the run that all workers make from the last synchronization on."""
        self.next_step = 0
        self.pids = ""
        comm.gather_objects(None)  # no process reads the memory before process 0 has written it

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[StepTask]:
        """Yield a task for each batch of this process's worker: every k-th one of the epoch."""
        if epoch != self.epoch:
            self.epoch, self.given = epoch, [0 for _ in self.given]
        self.steps, self.before = steps, sum(self.given)
        given = self.given[self.comm.rank]
        self.row[:] = 0
        self.row[GIVEN], self.row[STOPPED] = given, not steps
        self._count()
        self._meet()  # or the first worker would change the model while others evaluate or save it
        tickets = range(self.comm.rank, self.before + len(steps), self.recipe.workers)
        return self._tasks(tickets[given:])

    def _tasks(self, tickets: range) -> Iterator[StepTask]:
        for ticket in tickets:
            [examples] = ticket_batches(self.recipe, self.workload, self.epoch, ticket)
            step = self.epoch * self.recipe.steps_per_epoch + ticket
            divisor = gradient_weight(self.workload, examples)
            passes = [MicroBatch(self.epoch, examples, self.hosted, ticket)]
            yield StepTask(step, divisor, active_workers=1, micro_batches=passes)

    def begin(self, task: StepTask, *, stop_requested: bool) -> None:
        """Clear this worker's gradients; the parameters are shared, and others change them."""
        if stop_requested:
            self.row[STOP_REQUESTED] = 1
        self.own.zero_()
        self.divisor = task.divisor

    def backward(self, loss: Tensor) -> None:
        """Compute this worker's gradient of the mean loss by a backward pass."""
        self.mean = loss / self.divisor
        self.mean.backward()

    def step(self, task: StepTask) -> None:
        """Update the shared model by this worker's gradient, at the lr after all updates so far."""
        self.norm = exact_norm(self.own)
        self.row[NORM] = self.norm
        step = self.steps[self._made()]
        if torch.isfinite(self.mean.detach() + self.norm):
            optim.set_lr(self.optimizer, self.recipe.lr(step))
            self.optimizer.step()
        else:
            self.row[NONFINITE] = 1 + step
        for part in self.carried_states:
            # Each worker updates its own running statistics; the model has their mean.
            part.end_step(self.recipe.workers)
        self._count()
        self.row[GIVEN] += 1
        # If a row became due since this worker's last update, report the update at which it did.
        done = self.steps[self._made() - 1] + 1
        due = done - done % self.recipe.log_steps
        self.next_step = due if due > self.next_step else done

    def poll(self) -> bool:
        """Raise an error if any worker stopped early or any process has exited.

        These are DivergedError, PreemptedError and PeerLostError; for the first two all workers
        synchronize.
        """
        self.neighbours.check()
        if self.board[:, [STOP_REQUESTED, NONFINITE]].any():
            self.synchronize()
        return False

    def synchronize(self) -> bool:
        """Stop this process's worker, and wait until the workers of all processes have stopped.

        Raises DivergedError, PreemptedError or PeerLostError if that stopped a worker early.
        """
        if not self.row[STOPPED]:
            self.row[STOPPED] = 1
            self._wait()
            self._meet()
            self._end()
        for part in self.carried_states:
            part.write_to_model(partial(all_reduce_, self.comm))
        return False

    def state(self) -> dict[str, Any]:
        """Return the optimizer state and the workers' finished-batch counts for a checkpoint."""
        return self.optimizer.state_dict() | {"given": torch.tensor(self.given)}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Restore the optimizer state and each worker's number of finished batches."""
        groups = {name: state[name] for name in ("state", "param_groups")}
        self.optimizer.load_state_dict(groups)
        self.next_step = step
        self.epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        self.given = [given if of_epoch else 0 for given in state["given"].tolist()]

    def epoch_sums(self) -> MetricSumsState:
        """Return the metric sums of all workers in this epoch, approximate while they run."""
        rows = self.rows if self.row[STOPPED] else self.board
        loss, *counts = rows[:, LOSS:].sum(axis=0)
        return {
            "counts": torch.tensor(counts, dtype=torch.int64),
            "loss": torch.tensor(loss, dtype=torch.float64),
        }

    def save_artifacts(self, folder: Path) -> dict[str, str]:
        """Write no files, since none could reproduce the run; return the pids of all processes."""
        return {"order": "not recorded: two runs differ", "pids": self.pids}

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the norm of the last gradient of this process's worker."""
        return {"gradient_norm": float(self.row[NORM])}

    def phases(self) -> list[tuple[str, object, str]]:
        """Return the phases of a training step to time, none of which is communication."""
        return [
            ("optimizer", self, "begin"),
            ("backward", self, "backward"),
            ("optimizer", self, "step"),
        ]

    def _made(self) -> int:
        """Return the number of updates of all workers since the last synchronization."""
        return int(self.board[:, GIVEN].sum()) - self.before

    def _count(self) -> None:
        """Copy this worker's training-metric sums to its row in shared memory."""
        self.row[LOSS], self.row[COUNTS:] = self.tally.loss, self.tally.counts

    def _meet(self) -> None:
        """Wait for all processes, and gather the state of all workers from them."""
        everyone = self.comm.gather_objects((os.getpid(), self.row.tolist()))
        self.pids = " ".join(str(pid) for pid, _ in everyone)
        self.rows = np.array([row for _, row in everyone])

    def _wait(self) -> None:
        """Wait until all workers have stopped; raise PeerLostError if none makes progress."""
        made, since = self._made(), time.monotonic()
        while not self.board[:, STOPPED].all():
            self.neighbours.check()
            if preemption.stop_requested():
                self.row[STOP_REQUESTED] = 1
            time.sleep(LOOK)
            if self._made() > made:
                made, since = self._made(), time.monotonic()
            elif time.monotonic() - since > self.recipe.comm.timeout:
                silent = ", ".join(map(str, np.flatnonzero(self.board[:, STOPPED] == 0)))
                raise PeerLostError(
                    f"process {silent} has made no update for {self.recipe.comm.timeout:g} s; it "
                    f"hangs or is slower than comm.timeout allows; {RERUN}"
                )

    def _end(self) -> None:
        """Set the steps made by all workers; raise DivergedError or PreemptedError if due."""
        self.given = [int(given) for given in self.rows[:, GIVEN]]
        if made := sum(self.given) - self.before:
            self.next_step = self.steps[made - 1] + 1
        bad = self.rows[:, NONFINITE]
        if bad.any():
            raise divergence(int(bad[bad > 0].min()) - 1)
        if self.rows[:, STOP_REQUESTED].any():
            raise PreemptedError
