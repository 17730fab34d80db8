"""Synchronous SGD by all-reduce: every process has the gradient of all workers, and updates its
copy of the model by it."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, sum_
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.strategy import Task
from lsgd.strategy.guard import LEAVE, SAVE, Guard
from lsgd.strategy.reducer import Reducer
from lsgd.strategy.tasks import hosted_workers, synchronous_tasks
from lsgd.tally import State, Tally
from lsgd.workloads import Workload


class AllReduce:
    """The strategy of the paper: one update per step, by the mean over kn examples (section 3)."""

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        self.recipe, self.workload, self.comm, self.tally = recipe, workload, comm, tally
        self.hosted = hosted_workers(recipe, comm.world_size, comm.rank)
        self.parts = workload.parts(model, self.hosted, comm)
        self.reducer, self.optimizer = self._make(model)
        self.optimizer.found_inf = self.reducer.found_inf  # type: ignore[attr-defined]
        # A process alone waits for nobody, however long its step takes.
        timeout = recipe.comm.timeout if comm.world_size > 1 else math.inf
        self.guard = Guard(self.reducer.flags, timeout=timeout)
        self.next_step = 0
        # No two clocks agree, and all processes have to save after the same step.
        minutes = recipe.checkpoint_minutes if comm.rank == 0 else 0.0
        self.save_after = 60 * minutes or math.inf
        self.saved = time.monotonic()

    def _make(self, model: nn.Module) -> tuple[Reducer, torch.optim.Optimizer]:
        """What has the gradients of the model, and what has its momentum."""
        compression = self.recipe.gradient_compression
        reducer = Reducer(
            model.parameters(),
            self.comm,
            bucket_mb=self.recipe.comm.bucket_mb,
            compression=compression,
            hands_over=self.comm.world_size == 1 and compression == "none",
        )
        settings = asdict(self.recipe.optim)
        return reducer, optim.make_optimizer(model, norm=lambda: reducer.gradient_norm, **settings)

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """The part of each step that is of the workers which this process has in this epoch."""
        hosted = hosted_workers(self.recipe, self.comm.world_size, self.comm.rank, epoch)
        return synchronous_tasks(self.recipe, self.workload, hosted, epoch, steps)

    def read(self, task: Task, *, leave: bool) -> None:
        """Clear the gradients; this process's copy of the model is up to date."""
        note = LEAVE if leave else 0.0
        if time.monotonic() - self.saved >= self.save_after:
            self.saved = time.monotonic()
            note += SAVE
        self.reducer.start(task.divisor, len(task.passes), note=note)

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients, and start their sums in the last pass."""
        self.reducer.backward(loss)

    def give(self, task: Task) -> None:
        """Wait for the sums of the gradients, and make the update at lr(step)."""
        self.reducer.finish()
        self._update(task)

    def _update(self, task: Task) -> None:
        optim.set_lr(self.optimizer, self.recipe.lr(task.step))
        self.optimizer.step()  # which skips the update where found_inf is 1
        for part in self.parts:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1
        self.guard.watch(task.step)  # reads the flags a step late, so the host never waits for them

    def check(self) -> bool:
        """Raise Preempted, or say that it is time to save, if the step before the last said so."""
        return self.guard.leave_if_told()

    def settle(self) -> None:
        """Check the flags of the last step, and bring the parts of all processes together."""
        self.guard.check()
        # What is settled is saved, at once or after the evaluation.
        self.guard.forget_save()
        self.saved = time.monotonic()
        for part in self.parts:
            part.settle(partial(sum_, self.comm))

    def state(self) -> dict[str, Any]:
        """The state of the optimizer, the same on every process."""
        return self.optimizer.state_dict()

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Take up the momentum, or what else the optimizer has."""
        self.optimizer.load_state_dict(state)
        for parameter, values in self.optimizer.state.items():
            values |= optim.laid_out(parameter, values)
        self.next_step = step

    def counted(self) -> State:
        """The sum of the tallies of all processes."""
        return self.tally.state(partial(sum_, self.comm))

    def keep(self, folder: Path) -> dict[str, str]:
        """Nothing: recipe and seed decide all of it."""
        return {}

    def now(self) -> dict[str, float | list[int]]:
        """The norm of the last reduced gradient; reading it waits for the device."""
        self.guard.wait()  # or the norm would wait for a lost process without a limit
        return {"gradient_norm": self.reducer.gradient_norm.item()}

    def timed(self) -> list[tuple[str, object, str]]:
        """Clearing gradients counts as the optimizer's, and the wait for sums is communication."""
        return [
            ("optimizer", self.reducer, "start"),
            ("backward", self.reducer, "backward"),
            ("communication", self.reducer, "finish"),
            ("optimizer", self, "_update"),
        ]
