"""Local steps: every worker has a copy of the model and makes updates of its own. After some of
them, a round, the workers exchange what they have learned, by an outer rule.

    mean            local SGD: the mean of all copies (McMahan et al. 2017, Stich 2018)
    sgd, nesterov   momentum SGD whose gradient is the mean of the ways that the copies have gone,
                    backwards (DiLoCo, Douillard et al. 2023, with Nesterov's momentum)
    elastic         EASGD: copies and centre are drawn to each other, at the same time (Zhang et al.
                    2015, who draw by the copies as they were before the last update, not after it)

The mean is weighted by the examples that a worker has seen in the round. The centre, which is what
the last exchange has made, is the model that is evaluated and saved.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, sum_
from lsgd.comm.single import SingleComm
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.strategy import Task
from lsgd.strategy.allreduce import AllReduce
from lsgd.strategy.inner import OwnMomenta, views
from lsgd.strategy.reducer import Reducer
from lsgd.strategy.tasks import synchronous_tasks, weight
from lsgd.tally import Tally
from lsgd.workloads import Workload


class Local(AllReduce):
    """The strategy of local steps. A step is an update of every worker, by its own n examples.

    Between read and give the model holds the copy of the worker whose pass is next, settled it
    holds the centre. A worker's momentum, or what else its optimizer has, outlasts the exchanges.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        super().__init__(recipe, workload, model, comm, tally)
        self.settings = recipe.strategy
        self.elastic = self.settings.outer == "elastic"
        self.parameters = [parameter.detach() for parameter in model.parameters()]
        size = sum(parameter.numel() for parameter in self.parameters)
        self.copies = self.parameters[0].new_empty(len(self.hosted), size)
        """The copies of the hosted workers, shape (workers, elements), but for the newest values of
        the one that the model holds."""
        self.workers = [views(copy, self.parameters) for copy in self.copies]
        self.held: int | None = None
        """Which of these the model holds; None while it has the values of no worker."""
        self.centre = torch.empty_like(self.copies[0])
        self.values = views(self.centre, self.parameters)
        self.momenta = OwnMomenta(self.optimizer, self.hosted)
        self._start()
        averages = self.settings.outer in ("mean", "elastic")
        self.outer = torch.optim.SGD(
            self.values,
            lr=1.0 if averages else self.settings.outer_lr,
            momentum=self.settings.outer_momentum,
            nesterov=self.settings.outer == "nesterov",
        )
        # Numbers of this step that all processes add up while they compute the next one.
        self.message = self.centre.new_zeros(3)
        self.wait: Callable[[], None] | None = None
        self.squares = self.centre.new_zeros(())
        self.norm = self.centre.new_zeros(())

    def _make(self, model: nn.Module) -> tuple[Reducer, torch.optim.Optimizer]:
        """What has the gradients of one worker, and what makes its updates."""
        bucket_mb = self.recipe.comm.bucket_mb
        reducer = Reducer(model.parameters(), SingleComm(), bucket_mb=bucket_mb, compression="none")
        # Apart from the flags, which Guard reads: there it is that of all processes, a step late.
        reducer.found_inf = reducer.found_inf.clone()
        settings = asdict(self.recipe.optim)
        return reducer, optim.make_optimizer(model, norm=lambda: reducer.gradient_norm, **settings)

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """The hosted workers' part of each step, with a pass for each of them."""
        recipe = replace(self.recipe, workers_per_pass=1)
        return synchronous_tasks(recipe, self.workload, self.hosted, epoch, steps)

    def read(self, task: Task, *, leave: bool) -> None:
        """Let the model hold the copy of the first worker that has examples here, if any has."""
        super().read(task, leave=leave)
        self.note = self.reducer.note.clone()  # which the next start of the reducer clears
        optim.set_lr(self.optimizer, self.recipe.lr(task.step))
        self.squares.zero_()
        self.passes = iter(task.passes)
        self._read_next()

    def backward(self, loss: Tensor) -> None:
        """Make the update of the worker that the model holds, and let it hold the next one's."""
        self.reducer.backward(loss)
        self.reducer.finish()
        self._learn()

    def give(self, task: Task) -> None:
        """End the step, and where it is the last of a round, exchange."""
        self._communicate(task)
        self._end(task)

    def settle(self) -> None:
        """Let the model hold the centre; what workers have learned since stays with them."""
        self._listen()
        super().settle()
        self._hold(None)

    def state(self) -> dict[str, Any]:
        """The outer momentum, and of every worker what its optimizer has and, where it is not the
        centre, its copy.

        What is of workers is on process 0 alone, and on its host: all of them might not fit on a
        device. The other processes keep of each a number, which is NaN if it is not finite there.
        """
        return {
            "param_groups": self.optimizer.state_dict()["param_groups"],
            "outer": self.outer.state_dict(),
            "workers": [self._saved(worker) for worker in range(self.recipe.workers)],
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Take up the workers of this process, within a round too; the model holds the centre."""
        self._start()
        for index, worker in enumerate(self.hosted):
            saved = state["workers"][worker]
            if saved["copy"]:
                torch._foreach_copy_(self.workers[index], saved["copy"])
            self.momenta.restore(worker, saved)
        self.outer.load_state_dict(state["outer"])
        for value, values in self.outer.state.items():
            values |= optim.laid_out(value, values)
        self.next_step = step

    def now(self) -> dict[str, float | list[int]]:
        """The root mean square of the norms of the workers' last gradients, and the bytes of an
        exchange that a worker gives per step, on average over an epoch."""
        self._listen()
        self.guard.wait()
        steps = self.recipe.steps_per_epoch
        rounds = -(-steps // self.settings.local_steps)
        return {
            "gradient_norm": self.norm.item(),
            "exchanged_bytes": self.centre.nbytes * rounds / steps,
        }

    def timed(self) -> list[tuple[str, object, str]]:
        """Each worker has an update of its own; the outer one is a part of the exchange."""
        return [
            ("optimizer", self, "read"),
            ("backward", self.reducer, "backward"),
            ("optimizer", self, "_learn"),
            ("communication", self, "_communicate"),
            ("optimizer", self, "_end"),
        ]

    def _read_next(self) -> None:
        """Let the model hold the copy of the worker that has the next pass, if there is one."""
        if own := next(self.passes, None):
            self._hold(own.workers.start - self.hosted.start)
            self.reducer.start(weight(self.workload, own.examples), 1)

    def _learn(self) -> None:
        self.optimizer.step()
        self.squares += self.reducer.gradient_norm.square()
        self._read_next()

    def _communicate(self, task: Task) -> None:
        self._listen()
        self._tell(task)
        of_epoch = task.step % self.recipe.steps_per_epoch
        # The model is evaluated, and the order of examples begins anew, at the end of an epoch.
        last = of_epoch + 1 == self.recipe.steps_per_epoch
        if last or (of_epoch + 1) % self.settings.local_steps == 0:
            self._exchange(task.step)

    def _end(self, task: Task) -> None:
        for part in self.parts:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1

    def _tell(self, task: Task) -> None:
        """Begin to let all processes know what has come of this step."""
        self.message[0] = self.reducer.found_inf
        self.message[1] = self.note
        self.message[2] = self.squares / task.active_workers
        self.wait, self.told = self.comm.start_sum_(self.message, "notes"), task.step

    def _listen(self) -> None:
        """Learn what has come of the last step on all processes, unless it is known."""
        if self.wait:
            self.wait()
            self.wait = None  # which would keep its library's threads beyond the end of the job
            self.reducer.flags.copy_(self.message[:2])
            self.norm = self.message[2].sqrt()
            self.guard.watch(self.told)

    def _exchange(self, step: int) -> None:
        """Move the centre by what all workers have learned in the round that ends with a step."""
        self._store()
        gradient = torch.zeros_like(self.centre)
        for copy, share in zip(self.copies, self._shares(step), strict=True):
            gradient.add_(self.centre - copy, alpha=share)
        sum_(self.comm, gradient)
        if self.elastic:
            self.copies.lerp_(self.centre, self.settings.moving_rate)
        for value, part in zip(self.values, views(gradient, self.parameters), strict=True):
            value.grad = part
        self.outer.step()
        if not self.elastic:
            self.copies.copy_(self.centre)

    def _shares(self, step: int) -> list[float]:
        """What the way of each hosted worker counts for: by its examples since the last exchange,
        those of all workers being 1."""
        if self.elastic:
            return [self.settings.moving_rate for _ in self.hosted]
        epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        begin = step - of_epoch % self.settings.local_steps
        everyone, own = 0, dict.fromkeys(self.hosted, 0)
        for task in self.tasks(epoch, list(range(begin, step + 1))):
            everyone += task.divisor
            for part in task.passes:
                own[part.workers.start] += weight(self.workload, part.examples)
        return [share / everyone for share in own.values()]

    def _hold(self, index: int | None) -> None:
        """Let the model hold the copy of this one of the hosted workers, or the centre."""
        if index is None or index != self.held:
            self._store()
            values = self.values if index is None else self.workers[index]
            torch._foreach_copy_(self.parameters, values)
        if index is not None:
            self.momenta.take(self.hosted[index])
            self.held = index

    def _store(self) -> None:
        """Keep what the model holds of a worker; the model then has the values of none."""
        if self.held is not None:
            torch._foreach_copy_(self.workers[self.held], self.parameters)
        self.held = None

    def _start(self) -> None:
        """Let centre and copies be what the model holds."""
        torch._foreach_copy_(self.values, self.parameters)
        self.copies.copy_(self.centre)
        self.held = None

    def _saved(self, worker: int) -> dict[str, Any]:
        """What a worker has, its copy where that is not the centre."""
        of_epoch = self.next_step % self.recipe.steps_per_epoch
        apart = self.elastic or of_epoch % self.settings.local_steps != 0
        index = worker - self.hosted.start if worker in self.hosted else 0
        return self.momenta.gathered(self.comm, worker, self.workers[index] if apart else [])
