"""Backup workers, bounded staleness and asynchronous SGD, in an order of pushes known ahead; the
last two also with local steps.

The processes of the job share the workers, and nothing else: each of them plays all servers, and
applies every push, in the one order. A push is computed on the process that hosts its worker, with
the parameters that the worker had read, and brought to the others. So the run is bit by bit the
same on any number of processes, and one computes while others do as far as the order lets it.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm, sum_
from lsgd.errors import Diverged, Preempted, Refused
from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.rules.sampler import Pass
from lsgd.strategy import Task
from lsgd.strategy.guard import LEAVE, LOWER_LR, SAVE
from lsgd.strategy.order import Push, Script
from lsgd.strategy.placement import place
from lsgd.strategy.recorded import RecordedOrders, load_orders
from lsgd.strategy.shard import Shard, load_whole, make_whole
from lsgd.strategy.tasks import ticket_batches, weight
from lsgd.strategy.virtual import VirtualTime, server_loads
from lsgd.strategy.work import open_work, seen_in, zeros
from lsgd.tally import State, Tally
from lsgd.workloads import Workload


@dataclass
class _Sent:
    """A push that is computed, and on its way to the other processes until `wait` returns."""

    flat: Tensor
    """As lsgd.strategy.work has it; the second flag is the notes of all processes."""
    wait: Callable[[], None] | None
    left: int
    """How many servers have not yet applied it."""


class Replay:
    """The strategy of backup, bounded and async. Between read and give the model holds what the
    worker has read, else the newest parameters."""

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        self.recipe, self.workload, self.comm, self.tally = recipe, workload, comm, tally
        self.hosted = sampler.share(recipe.workers, comm.world_size, comm.rank)
        # Process 0 has the parts of all workers, and pushes bring it what they have seen.
        carried = range(recipe.workers) if comm.rank == 0 else range(0)
        self.parts = workload.parts(model, carried, comm)
        parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in parameters]
        self.begins = list(accumulate(sizes, initial=0))
        self.work = open_work(recipe, model, self.parts, self.hosted)
        self.nothing = zeros(parameters, self.parts)
        """What a process adds to the push of another."""
        served = replace(recipe, optim=recipe.server_optim)
        self.whole = make_whole(model, served)
        self.found_inf = self.nothing.new_zeros((), dtype=torch.float32)
        slices = place(sizes, recipe.strategy.servers, recipe.strategy.placement)
        one_gate = recipe.strategy.name == "backup"
        self.clips = served.optim.clip_norm is not None
        self.norms: dict[int, Tensor] = {}
        """The norm of the whole gradient of the last update of server 0, and where they clip, of
        each server."""
        shards = [
            Shard(
                model,
                self.whole,
                each,
                served,
                self.found_inf,
                norm=partial(self.norms.__getitem__, 0 if one_gate else number),
            )
            for number, each in enumerate(slices)
        ]
        loads = server_loads(slices, self.nothing.element_size())
        self.time: VirtualTime | RecordedOrders
        if recipe.strategy.order == "virtual":
            self.time = VirtualTime(recipe, loads)
        else:
            self.time = RecordedOrders(recipe, load_orders(Path(recipe.strategy.order)))
        self.servers = [shards] if one_gate else [[shard] for shard in shards]
        """The shards of each server, or of all where one gate decides for all."""
        # A process that has given its push goes on, until so many are under way.
        self.one_gate = one_gate
        under_way = recipe.update_workers if one_gate else recipe.workers
        self.lag = 0 if comm.world_size == 1 else under_way
        minutes = recipe.checkpoint_minutes if comm.rank == 0 else 0.0
        self.save_after = 60 * minutes or math.inf
        self.saved = time.monotonic()
        self.leave = self.save = False
        self.next_step = 0
        self.sent: dict[int, _Sent] = {}
        self.flags: dict[int, Tensor] = {}
        """NaN or not, and the notes, of pushes that were not examined."""
        self.copies: dict[tuple[int, int], list[Tensor]] = {}
        """What workers have read and others have changed since, by server and version."""
        self.newest: dict[int, list[Tensor]] = {}
        """What servers have whose values the model does not hold just now."""
        self._begin(0)

    @property
    def script(self) -> Script:
        """What the pushes of this epoch read and where they go."""
        return self.time.script(self.begun)

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[Task]:
        """For each step the pushes of its update; this process has passes for its own workers."""
        script = self.time.script(epoch)
        for step in steps:
            of_epoch = step % self.recipe.steps_per_epoch
            if of_epoch == len(script.steps):
                raise Refused(
                    f"strategy.order={self.recipe.strategy.order} ends after step {step}, as the "
                    "run that it is of did, and this one has come as far"
                )
            pushes = [script.pushes[number] for number in script.steps[of_epoch]]
            passes = [
                Pass(epoch, examples, range(push.worker, push.worker + 1), of_epoch)
                for push in pushes
                for examples in self._batches(epoch, push)
            ]
            yield Task(
                step,
                divisor=sum(self._weight(epoch, push) for push in pushes),
                active_workers=len(pushes),
                passes=[each for each in passes if each.workers.start in self.hosted],
            )

    def read(self, task: Task, *, leave: bool) -> None:
        """Let the model hold what the workers of this task have read, if it has passes here."""
        epoch, of_epoch = divmod(task.step, self.recipe.steps_per_epoch)
        if epoch != self.begun:
            self._begin(epoch)
        numbers = self.script.steps[of_epoch]
        self.to_send = iter(numbers)
        self.mine = iter([i for i in numbers if self.script.pushes[i].worker in self.hosted])
        self.last_of_task = numbers[-1]
        self.note = LEAVE if leave else 0.0
        if time.monotonic() - self.saved >= self.save_after:
            self.saved = time.monotonic()
            self.note += SAVE
        # In a rehearsal the steps between were left out, and nobody will read what they would have.
        self.given = numbers[0] - 1
        self.held: list[int] | None = None
        """The versions that the model holds for the next push of this process; None: the newest."""
        self._read_next()

    def backward(self, loss: Tensor) -> None:
        """Make a backward pass of the next push of this process, and send it after the last one."""
        assert self.coming is not None
        self.work.backward(loss)
        self.left -= 1
        if not self.left:
            self._send(self.coming, self.work.push())
            self._read_next()

    def give(self, task: Task) -> None:
        """Make the updates for which the pushes are there, the last ones of others apart."""
        self._load_newest()
        self.given, self.next_step = self.last_of_task, task.step + 1
        self._apply(self.given - self.lag)

    def check(self) -> bool:
        """Raise Diverged or Preempted, or say that it is time to save, if a push has said so."""
        self._examine(self.given - self.lag)
        if self.leave:
            raise Preempted
        save, self.save = self.save, False
        return save

    def settle(self) -> None:
        """Apply all pushes that servers have handled by now, and bring the parts together."""
        self._apply(self.given)
        self._examine(self.given)
        self.save, self.saved = False, time.monotonic()
        for part in self.parts:
            part.settle(partial(sum_, self.comm))

    def state(self) -> dict[str, Any]:
        """The momentum, and within an epoch what workers have read and what is under way."""
        for server in self.servers:
            server[0].report()
        epoch = self.next_step // self.recipe.steps_per_epoch
        return self.whole.state_dict() | {
            "virtual_seconds": self.time.begin(epoch),
            "versions": list(self.version),
            "read": [[*version, values] for version, values in self.copies.items()],
            "under_way": [[number, sent.flat] for number, sent in self.sent.items()],
            "steps": self._steps(),
            **self.work.state(self.comm),
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on within an epoch too, with what was under way."""
        load_whole(self.whole, state)
        for shard in self._shards():
            shard.link()
        # Runs of before this was saved have none.
        for own, saved in zip(self._steps(), state.get("steps", []), strict=True):
            own.copy_(saved)
        self.work.restore(state)
        self.next_step = step
        epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        if isinstance(self.time, VirtualTime):
            self.time.begins[epoch] = state["virtual_seconds"]
        self._begin(epoch)
        if not of_epoch:
            return
        device = self.nothing.device
        self.given = self.arrived = self.examined = self.script.steps[of_epoch - 1][-1]
        self.version = list(state["versions"])
        self.copies = {
            (server, version): [value.to(device) for value in values]
            for server, version, values in state["read"]
        }
        for number, flat in state["under_way"]:
            applied = self.script.pushes[number].applied
            left = sum(at >= self.version[server] for server, at in enumerate(applied))
            self.sent[number] = _Sent(flat.to(device), None, left)

    def counted(self) -> State:
        """The sum of the tallies of all processes."""
        return self.tally.state(partial(sum_, self.comm))

    def keep(self, folder: Path) -> dict[str, str]:
        """Nothing: the order is known without the run."""
        return {}

    def now(self) -> dict[str, float | list[int]]:
        """The norm of the gradient of server 0's last update, that of the outer rule with local
        steps, and what virtual time says of the
        last pushes."""
        self._apply(self.given)
        self._examine(self.given)
        return {"gradient_norm": self.norms[0].item(), **self.time.row(self.next_step - 1)}

    def timed(self) -> list[tuple[str, object, str]]:
        """What a push waits for is the pushes of others; local steps are part of backward."""
        return [
            ("optimizer", self, "read"),
            ("backward", self, "backward"),
            ("communication", self, "give"),
        ]

    def _begin(self, epoch: int) -> None:
        """Let all workers have read the parameters as they are."""
        self.begun = epoch
        self.version = [0 for _ in self.servers]
        self.given = self.arrived = self.examined = -1
        """The last push of the tasks that were given, the last that is here, and the last whose
        flags were read."""
        self.sent, self.flags, self.copies, self.newest = {}, {}, {}, {}

    def _read_next(self) -> None:
        """Let the model hold what the next push of this process is computed with, if there is one.

        The pushes of an update have all read the same; one that its server 0 never got has not.
        """
        self.coming = next(self.mine, None)
        self._send_others(self.coming)
        if self.coming is None:
            return
        push = self.script.pushes[self.coming]
        if push.read != self.held:
            self._load_newest()
            self.held = push.read
            self._load(self.held)
        divisors = self._divisors(push)
        self.left = len(divisors)
        begun = self.begun * self.recipe.steps_per_epoch
        self.work.begin(push.worker, begun + push.read[0], divisors)

    def _load_newest(self) -> None:
        for server, newest in self.newest.items():
            self._write(server, newest)
        self.newest = {}

    def _batches(self, epoch: int, push: Push) -> list[NDArray[np.int64]]:
        return ticket_batches(self.recipe, self.workload, epoch, push.ticket)

    def _weight(self, epoch: int, push: Push) -> int:
        return sum(weight(self.workload, examples) for examples in self._batches(epoch, push))

    def _divisors(self, push: Push) -> list[int]:
        """What the summed loss of each pass of a push is divided by. Who pushes does not know the
        others of an update: then it is the number of examples that an update mostly has."""
        if self.one_gate:
            return [self.recipe.batch_size]
        return [weight(self.workload, examples) for examples in self._batches(self.begun, push)]

    def _send_others(self, until: int | None) -> None:
        """Take part in sending the pushes before this one, which other processes compute."""
        for number in self.to_send:
            if number == until:
                return
            self._send(number, self.nothing.clone())

    def _send(self, number: int, flat: Tensor) -> None:
        if number == self.last_of_task:
            flat[-1] = self.note
        wait = None
        if self.comm.world_size > 1:
            wait = self.comm.start_sum_(flat, f"push {number}")
        applied = self.script.pushes[number].applied
        self.sent[number] = _Sent(flat, wait, sum(version >= 0 for version in applied))

    def _receive(self, last: int) -> None:
        """Wait until the pushes up to this one are here."""
        # In the order in which the sums were started, on all processes.
        while self.arrived < last:
            self.arrived += 1
            sent = self.sent.get(self.arrived)
            if sent is None:
                continue  # a rehearsal leaves steps out
            if sent.wait:
                sent.wait()
                sent.wait = None  # which would keep its library's threads beyond the end of the job
            norm = torch.linalg.vector_norm(sent.flat[: self.begins[-1]])
            doubt = (0 * (sent.flat[-2] + norm)).isnan()
            self.found_inf.logical_or_(doubt)
            self.flags[self.arrived] = torch.stack((doubt.to(sent.flat.dtype), sent.flat[-1]))

    def _examine(self, last: int) -> None:
        """Read the flags of the pushes up to this one: the same on all processes."""
        self._receive(last)
        while self.examined < last:
            self.examined += 1
            if self.examined not in self.flags:
                continue
            doubt, note = self.flags.pop(self.examined).tolist()
            if doubt:
                self._receive(self.given)  # or the others would miss this process in their sums
                raise Diverged(
                    f"the loss or a gradient of step {self._step_of(self.examined)} is not finite, "
                    f"and nothing was saved since; {LOWER_LR}"
                )
            self.leave |= note >= LEAVE
            self.save |= note == SAVE

    def _step_of(self, number: int) -> int:
        """The step of the run that a push is computed in."""
        of_epoch = next(i for i, each in enumerate(self.script.steps) if number in each)
        return self.begun * self.recipe.steps_per_epoch + of_epoch

    def _load(self, read: list[int]) -> None:
        """Let the model hold these versions, and keep what is newer."""
        for server, version in enumerate(read):
            while self.version[server] < version:
                self._update(server)
            if self.version[server] > version:
                self.newest[server] = self._copy(server)
                self._write(server, self.copies[server, version])

    def _apply(self, last: int) -> None:
        """Make all updates that need no push after this one."""
        for server, updates in enumerate(self.script.updates):
            while self.version[server] < len(updates):
                if updates[self.version[server]][-1] > last:
                    break
                self._update(server)
        for version in [v for v in self.copies if self.script.last_read[v] <= self.given]:
            del self.copies[version]

    def _update(self, server: int) -> None:
        """Make the next update of a server."""
        version = self.version[server]
        if self.script.last_read.get((server, version), -1) > self.given:
            self.copies[server, version] = self._copy(server)
        numbers = self.script.updates[server][version]
        if all(number in self.sent for number in numbers):
            self._receive(numbers[-1])
            push, *others = [self.sent[number].flat for number in numbers]
            whole = self._update_weight(numbers)
            if others or self.clips or whole:
                push = push.clone()  # which clipping shortens, and other servers need as it is
                for other in others:
                    push += other
            if whole:
                push[: self.begins[-1]] *= self.recipe.batch_size / whole
            if server == 0 or self.clips:
                self.norms[server] = torch.linalg.vector_norm(push[: self.begins[-1]])
            lr = self._lr(server, version, numbers[-1])
            for shard in self.servers[server]:
                shard.apply(shard.cut(push, self.begins), lr)
            if server == 0:
                self._move_parts(push, len(numbers))
            for number in numbers:
                self.sent[number].left -= 1
                if not self.sent[number].left:
                    del self.sent[number]
        self.version[server] += 1

    def _update_weight(self, numbers: list[int]) -> int:
        """What the examples of an update count for, if that is not the divisor of its pushes."""
        if not self.one_gate:
            return 0
        whole = sum(self._weight(self.begun, self.script.pushes[number]) for number in numbers)
        return 0 if whole == self.recipe.batch_size else whole

    def _lr(self, server: int, version: int, number: int) -> float:
        # After losses another server may have had more pushes than server 0.
        of_epoch = min(version, self.recipe.steps_per_epoch - 1)
        lr = self.recipe.lr(self.begun * self.recipe.steps_per_epoch + of_epoch)
        if self.recipe.strategy.pushes_ways:
            lr = self.recipe.strategy.outer_lr
        if not self.recipe.strategy.staleness_aware:
            return lr
        return lr / max(1, version - self.script.pushes[number].read[server])

    def _move_parts(self, push: Tensor, active_workers: int) -> None:
        for part, seen in seen_in(push, self.parts):
            if self.comm.rank == 0:
                part.seen.copy_(seen)
            part.end_step(active_workers)

    def _copy(self, server: int) -> list[Tensor]:
        return [value for shard in self.servers[server] for value in shard.copy()]

    def _write(self, server: int, values: list[Tensor]) -> None:
        rest = iter(values)
        for shard in self.servers[server]:
            shard.write([next(rest) for _ in shard.slices])

    def _steps(self) -> list[Tensor]:
        """The updates that slices have had; within an epoch a server may be ahead of another."""
        return [step for shard in self._shards() for step in shard.steps()]

    def _shards(self) -> list[Shard]:
        return [shard for server in self.servers for shard in server]
