"""Local SGD: workers update model copies of their own, and exchange them every few steps.

The steps between two exchanges are a round. An exchange follows an outer rule:

    mean            local SGD: the mean of all copies (McMahan et al. 2017, Stich 2018)
    sgd, nesterov   momentum SGD on the mean pseudo-gradient, which is the centre minus the copy
                    (DiLoCo, Douillard et al. 2023, with Nesterov's momentum)
    elastic         EASGD: copies and centre move towards each other at the same time (Zhang et al.
                    2015, who use the copies from before the last update, not after it)

The mean is weighted by the examples that a worker has seen in the round. The centre, which the last
exchange has computed, is the model that is evaluated and saved.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, all_reduce_
from lsgd.comm.single import SingleComm
from lsgd.metric_sums import MetricSums
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.strategy import StepTask
from lsgd.strategy.allreduce import AllReduce
from lsgd.strategy.inner import InnerOptimizerStates, views
from lsgd.strategy.reducer import Reducer
from lsgd.strategy.tasks import gradient_weight, synchronous_tasks
from lsgd.workloads import Workload


class LocalSGD(AllReduce):
    """Local SGD strategy: workers update model copies of their own, exchanged every few steps.

    In each local step every worker makes an update by its own n examples. Between `begin` and
    `step` the model holds the copy of the worker whose micro-batch is next, and after `synchronize`
    the centre. A worker's optimizer state persists over the exchanges.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        super().__init__(recipe, workload, model, comm, tally)
        self.settings = recipe.strategy
        self.elastic = self.settings.outer == "elastic"
        self.parameters = [parameter.detach() for parameter in optim.trained_parameters(model)]
        size = sum(parameter.numel() for parameter in self.parameters)
        self.copies = self.parameters[0].new_empty(len(self.hosted), size)
        """Copies of the hosted workers, shape (workers, elements); one is newer in the model."""
        self.workers = [views(copy, self.parameters) for copy in self.copies]
        self.held: int | None = None
        """Index of the hosted worker whose copy the model holds; None for no worker."""
        self.centre = torch.empty_like(self.copies[0])
        self.values = views(self.centre, self.parameters)
        self.momenta = InnerOptimizerStates(self.optimizer, self.hosted)
        self._start()
        averages = self.settings.outer in ("mean", "elastic")
        self.outer = torch.optim.SGD(
            self.values,
            lr=1.0 if averages else self.settings.outer_lr,
            momentum=self.settings.outer_momentum,
            nesterov=self.settings.outer == "nesterov",
        )
        # Outcome of this step, whose all-reduce overlaps with the next step.
        self.message = self.centre.new_zeros(3)
        self.wait: Callable[[], None] | None = None
        self.squares = self.centre.new_zeros(())
        self.norm = self.centre.new_zeros(())

    def _make(self, model: nn.Module) -> tuple[Reducer, torch.optim.Optimizer]:
        """Create the reducer of one worker's gradients, and the optimizer of its local updates."""
        bucket_mb = self.recipe.comm.bucket_mb
        reducer = Reducer(
            optim.trained_parameters(model), SingleComm(), bucket_mb=bucket_mb, compression="none"
        )
        # A copy, since NonFiniteGuard reads the flag of all processes, one step late, in `flags`.
        reducer.found_inf = reducer.found_inf.clone()
        settings = asdict(self.recipe.optim)
        return reducer, optim.make_optimizer(model, norm=lambda: reducer.gradient_norm, **settings)

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[StepTask]:
        """Yield the tasks of this process's workers, with one micro-batch for each worker."""
        optim.set_epoch(self.optimizer, epoch)
        recipe = replace(self.recipe, workers_per_pass=1)
        return synchronous_tasks(recipe, self.workload, self.hosted, epoch, steps)

    def begin(self, task: StepTask, *, stop_requested: bool) -> None:
        """Load the model copy of the first worker of this process with examples in this step."""
        super().begin(task, stop_requested=stop_requested)
        self.note = self.reducer.note.clone()  # the next start of the reducer clears it
        optim.set_lr(self.optimizer, self.recipe.lr(task.step))
        self.squares.zero_()
        self.passes = iter(task.micro_batches)
        self._read_next()

    def backward(self, loss: Tensor) -> None:
        """Make the local update of the current worker by a loss, and load the next one's copy."""
        self.reducer.backward(loss)
        self.reducer.finish()
        self._update_worker()

    def step(self, task: StepTask) -> None:
        """Finish a local step, and exchange the workers' parameters if a round ends with it."""
        self._communicate(task)
        self._end(task)

    def synchronize(self) -> bool:
        """Load the centre of the last exchange into the model; the workers keep their copies."""
        self._wait_for_outcome()
        super().synchronize()
        self._hold(None)
        return False

    def state(self) -> dict[str, Any]:
        """Return the outer momentum and each worker's optimizer state and copy, for a checkpoint.

        A copy that equals the centre is left out. The state of workers is on process 0 alone, in
        host memory, since that of all workers might not fit on a device. The other processes have
        one number per worker, which is NaN if any of its values is not finite.
        """
        return {
            "param_groups": self.optimizer.state_dict()["param_groups"],
            "outer": self.outer.state_dict(),
            "workers": [self._saved(worker) for worker in range(self.recipe.workers)],
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Restore this process's workers, maybe within a round, and load the centre."""
        self._start()
        for index, worker in enumerate(self.hosted):
            saved = state["workers"][worker]
            if saved["copy"]:
                torch._foreach_copy_(self.workers[index], saved["copy"])
            self.momenta.restore(worker, saved)
        self.outer.load_state_dict(state["outer"])
        for value, values in self.outer.state.items():
            values |= optim.copy_in_layout(value, values)
        self.next_step = step

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the gradient norm over all workers, and the mean bytes exchanged per step.

        The norm is the root mean square of the norms of the workers' last gradients. The bytes are
        those that one worker sends, averaged over an epoch.
        """
        self._wait_for_outcome()
        self.guard.wait()
        steps = self.recipe.steps_per_epoch
        rounds = -(-steps // self.settings.local_steps)
        return {
            "gradient_norm": self.norm.item(),
            "exchanged_bytes": self.centre.nbytes * rounds / steps,
        }

    def phases(self) -> list[tuple[str, object, str]]:
        """Return the phases of a training step to time; the outer update is communication."""
        return [
            ("optimizer", self, "begin"),
            ("backward", self.reducer, "backward"),
            ("optimizer", self, "_update_worker"),
            ("communication", self, "_communicate"),
            ("optimizer", self, "_end"),
        ]

    def _read_next(self) -> None:
        """Load the model copy of the worker that has the next micro-batch, if there is one."""
        if own := next(self.passes, None):
            self._hold(own.workers.start - self.hosted.start)
            self.reducer.start(gradient_weight(self.workload, own.examples), 1)

    def _update_worker(self) -> None:
        """Make the local update of the current worker, and load the next worker's copy."""
        self.optimizer.step()
        self.squares += self.reducer.gradient_norm.square()
        self._read_next()

    def _communicate(self, task: StepTask) -> None:
        self._wait_for_outcome()
        self._start_outcome(task)
        of_epoch = task.step % self.recipe.steps_per_epoch
        # The model is evaluated, and the order of examples begins anew, at the end of an epoch.
        last = of_epoch + 1 == self.recipe.steps_per_epoch
        if last or (of_epoch + 1) % self.settings.local_steps == 0:
            self._exchange(task.step)

    def _end(self, task: StepTask) -> None:
        for part in self.carried_states:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1

    def _start_outcome(self, task: StepTask) -> None:
        """Start the all-reduce of this step's outcome: flag, notes and gradient norm."""
        self.message[0] = self.reducer.found_inf
        self.message[1] = self.note
        self.message[2] = self.squares / task.active_workers
        self.wait, self.told = self.comm.start_all_reduce_(self.message, "notes"), task.step

    def _wait_for_outcome(self) -> None:
        """Wait for the outcome of the last step from all ranks, once."""
        if self.wait:
            self.wait()
            self.wait = None  # a kept handle keeps its library's threads after the job
            self.reducer.flags.copy_(self.message[:2])
            self.norm = self.message[2].sqrt()
            self.guard.watch(self.told)

    def _exchange(self, step: int) -> None:
        """Update the centre parameters by all workers' pseudo-gradients of the ending round."""
        self._store()
        gradient = torch.zeros_like(self.centre)
        for copy, share in zip(self.copies, self._shares(step), strict=True):
            gradient.add_(self.centre - copy, alpha=share)
        all_reduce_(self.comm, gradient)
        if self.elastic:
            self.copies.lerp_(self.centre, self.settings.moving_rate)
        for value, part in zip(self.values, views(gradient, self.parameters), strict=True):
            value.grad = part
        self.outer.step()
        if not self.elastic:
            self.copies.copy_(self.centre)

    def _shares(self, step: int) -> list[float]:
        """Return the weight of each hosted worker's pseudo-gradient in the outer update.

        A weight is the worker's share of all examples since the last exchange, or the moving rate
        of EASGD.
        """
        if self.elastic:
            return [self.settings.moving_rate for _ in self.hosted]
        epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        begin = step - of_epoch % self.settings.local_steps
        everyone, own = 0, dict.fromkeys(self.hosted, 0)
        for task in self.tasks(epoch, list(range(begin, step + 1))):
            everyone += task.divisor
            for part in task.micro_batches:
                own[part.workers.start] += gradient_weight(self.workload, part.examples)
        return [share / everyone for share in own.values()]

    def _hold(self, index: int | None) -> None:
        """Load a hosted worker's model copy, or the centre if `index` is None, into the model."""
        if index is None or index != self.held:
            self._store()
            values = self.values if index is None else self.workers[index]
            torch._foreach_copy_(self.parameters, values)
        if index is not None:
            self.momenta.activate(self.hosted[index])
            self.held = index

    def _store(self) -> None:
        """Copy the model's values back to its current worker; make no worker current."""
        if self.held is not None:
            torch._foreach_copy_(self.workers[self.held], self.parameters)
        self.held = None

    def _start(self) -> None:
        """Set the centre and all workers' copies to the parameters of the model."""
        torch._foreach_copy_(self.values, self.parameters)
        self.copies.copy_(self.centre)
        self.held = None

    def _saved(self, worker: int) -> dict[str, Any]:
        """Return a worker's optimizer state, and its copy if not the centre, for a checkpoint."""
        of_epoch = self.next_step % self.recipe.steps_per_epoch
        apart = self.elastic or of_epoch % self.settings.local_steps != 0
        index = worker - self.hosted.start if worker in self.hosted else 0
        return self.momenta.gather_state(self.comm, worker, self.workers[index] if apart else [])
