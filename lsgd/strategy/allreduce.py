"""Synchronous SGD by all-reduce, and a variant that also measures the gradient noise scale."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, all_reduce_
from lsgd.metric_sums import MetricSums, MetricSumsState
from lsgd.recipe import Recipe
from lsgd.rules import noise_scale, optim
from lsgd.rules.loss_scale import STATE_KEY
from lsgd.strategy import StepTask
from lsgd.strategy.guard import SAVE_NOTE, STOP_NOTE, NonFiniteGuard
from lsgd.strategy.reducer import Reducer
from lsgd.strategy.tasks import hosted_workers, synchronous_tasks
from lsgd.workloads import CarriedState, Workload


class AllReduceUpdate:
    """Update of a model, once per step, by the all-reduced gradient of all virtual workers.

    It knows no recipe: AllReduce makes one for a recipe, and lsgd.virtual for the model and the
    optimizer of any program.
    """

    def __init__(
        self,
        reducer: Reducer,
        optimizer: torch.optim.Optimizer,
        carried_states: Sequence[CarriedState],
        comm: Comm,
        guard: NonFiniteGuard,
    ) -> None:
        self.reducer, self.optimizer, self.comm, self.guard = reducer, optimizer, comm, guard
        self.carried_states = tuple(carried_states)
        self.next_step = 0

    def backward(self, loss: Tensor) -> None:
        """Run a micro-batch's backward pass; the last one of a step starts the all-reduce."""
        self.reducer.backward(loss)

    def step(self, task: StepTask) -> None:
        """Wait for the all-reduce of the gradients, and update the model."""
        self.reducer.finish()
        self._update(task)

    def _update(self, task: StepTask) -> None:
        """Update the parameters by an optimizer step, and then the carried states."""
        self.optimizer.step()  # skips the update where found_inf is 1
        for part in self.carried_states:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1
        self.guard.watch(task.step)  # reads the flags a step late, so that the host does not wait

    def synchronize(self) -> bool:
        """Raise DivergedError if the last step was not finite; synchronize the carried states."""
        self.guard.raise_if_nonfinite()
        for part in self.carried_states:
            part.write_to_model(partial(all_reduce_, self.comm))
        return False


class AllReduce(AllReduceUpdate):
    """Synchronous SGD strategy: one update per step, by the all-reduced gradient of all workers.

    The gradient is the mean over kn examples, as in the paper (section 3).
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        self.recipe, self.workload, self.comm, self.tally = recipe, workload, comm, tally
        self.hosted = hosted_workers(recipe, comm.world_size, comm.rank)
        carried_states = workload.carried_states(model, self.hosted, comm)
        reducer, optimizer = self._make(model)
        self.loss_scale = reducer.loss_scale
        found_inf = reducer.found_inf
        if self.loss_scale:
            found_inf = self.loss_scale.found_inf
            optim.create_state(optimizer)
        # Of torch's own loops only the fused ones know the flag, and the others refuse it.
        if not recipe.optim.is_own or getattr(optimizer, "_step_supports_amp_scaling", False):
            optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        # A single process waits for no other, so its steps have no timeout.
        timeout = recipe.comm.timeout if comm.world_size > 1 else math.inf
        guard = NonFiniteGuard(reducer.flags, timeout=timeout)
        super().__init__(reducer, optimizer, carried_states, comm, guard)
        # Clocks of processes differ, and all have to save after the same step: process 0 decides.
        minutes = recipe.checkpoint_minutes if comm.rank == 0 else 0.0
        self.save_after = 60 * minutes or math.inf
        self.saved = time.monotonic()

    def _make(self, model: nn.Module) -> tuple[Reducer, torch.optim.Optimizer]:
        """Create the reducer that all-reduces the model's gradients, and the model's optimizer."""
        compression = self.recipe.gradient_compression
        reducer = Reducer(
            optim.trained_parameters(model),
            self.comm,
            bucket_mb=self.recipe.comm.bucket_mb,
            compression=compression,
            keep_autograd_grads=self.comm.world_size == 1 and compression == "none",
            scales_loss=self.recipe.precision == "float16",
        )
        settings = asdict(self.recipe.optim) | {"full_lr": self.recipe.scaled_lr}
        return reducer, optim.make_optimizer(model, norm=lambda: reducer.gradient_norm, **settings)

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[StepTask]:
        """Yield the tasks (micro-batches) of the workers that this process hosts in this epoch."""
        optim.set_epoch(self.optimizer, epoch)
        hosted = hosted_workers(self.recipe, self.comm.world_size, self.comm.rank, epoch)
        return synchronous_tasks(self.recipe, self.workload, hosted, epoch, steps)

    def begin(self, task: StepTask, *, stop_requested: bool) -> None:
        """Clear the gradients for a step; this process's copy of the model is already current."""
        note = STOP_NOTE if stop_requested else 0.0
        if time.monotonic() - self.saved >= self.save_after:
            self.saved = time.monotonic()
            note += SAVE_NOTE
        self.reducer.start(task.divisor, len(task.micro_batches), note=note)

    def step(self, task: StepTask) -> None:
        """Wait for the all-reduce of the gradients, and update the model at the lr of this step."""
        optim.set_lr(self.optimizer, self.recipe.lr(task.step))
        self.reducer.finish()
        self._update(task)

    def poll(self) -> bool:
        """Return whether a timed checkpoint is due, or raise PreemptedError at a stop request."""
        return self.guard.poll()

    def synchronize(self) -> bool:
        """Raise DivergedError if the last step was not finite; synchronize the carried states."""
        super().synchronize()
        # A checkpoint follows every synchronization, at once or after the evaluation.
        self.guard.forget_save()
        self.saved = time.monotonic()
        return False

    def state(self) -> dict[str, Any]:
        """Return the state of optimizer and loss scale for a checkpoint, the same everywhere."""
        scale = {STATE_KEY: self.loss_scale.state()} if self.loss_scale else {}
        return self.optimizer.state_dict() | scale

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Restore the state of the optimizer and the loss scale from a checkpoint."""
        optim.load_state(self.optimizer, state, is_own=self.recipe.optim.is_own)
        if self.loss_scale:
            self.loss_scale.restore(state[STATE_KEY])
        self.next_step = step

    def epoch_sums(self) -> MetricSumsState:
        """Return the training-metric sums of this epoch, added up over all processes."""
        return self.tally.state(partial(all_reduce_, self.comm))

    def save_artifacts(self, folder: Path) -> dict[str, str]:
        """Write no files, since recipe and seed alone reproduce the whole run."""
        return {}

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the norm of the last reduced gradient; reading it waits for the device.

        In float16 the loss scale and the number of skipped steps follow.
        """
        self.guard.wait()  # has a timeout, which reading the norm of a lost process would not have
        scale = self.loss_scale.metrics() if self.loss_scale else {}
        return {"gradient_norm": self.reducer.gradient_norm.item(), **scale}

    def phases(self) -> list[tuple[str, object, str]]:
        """Return the phases of a training step to time; the all-reduce is communication."""
        return [
            ("optimizer", self.reducer, "start"),
            ("backward", self.reducer, "backward"),
            ("communication", self.reducer, "finish"),
            ("optimizer", self, "_update"),
        ]


class NoiseScaleAllReduce(AllReduce):
    """All-reduce strategy that also estimates the gradient noise scale, with bit-equal updates.

    The estimate uses the norm of each parameter's gradient in each micro-batch.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        super().__init__(recipe, workload, model, comm, tally)
        sums = tally.add_sum(noise_scale.STATE_KEY, noise_scale.SUM_COUNT)
        self.noise = noise_scale.NoiseScaleSums(
            optim.trained_parameters(model), sums, whole_steps=comm.rank == 0
        )

    def backward(self, loss: Tensor) -> None:
        """Run a micro-batch's backward pass, and measure its gradient for the noise scale."""
        super().backward(loss)
        self.noise.end_micro_batch()

    def _update(self, task: StepTask) -> None:
        # Must come before the optimizer, which may scale or clip the gradients in place.
        sizes = [len(each.examples) for each in task.micro_batches]
        self.noise.end_step(sizes, task.divisor, self.reducer.gradient_norm)
        super()._update(task)
