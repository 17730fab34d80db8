"""Backup workers, bounded staleness and asynchronous SGD by an order of pushes known in advance.

Bounded staleness and asynchronous SGD may also push after several local steps. The processes of the
job divide the workers among them. Every process simulates all servers and applies every push, in
the one order. A push is computed on the process that hosts its worker, with the parameters that the
worker had read, and sent to the other processes. So the run is bit by bit the same on any number of
processes, and processes compute in parallel as far as the order allows.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lsgd.comm import Comm, all_reduce_
from lsgd.errors import PreemptedError, UsageError
from lsgd.files import atomic_write
from lsgd.metric_sums import MetricSums, MetricSumsState
from lsgd.recipe import Recipe
from lsgd.rules import optim, sampler
from lsgd.rules.exact_norm import exact_norm
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy import StepTask, Strategy
from lsgd.strategy.computation import open_computation, state_sections, zero_push
from lsgd.strategy.guard import SAVE_NOTE, STOP_NOTE, divergence
from lsgd.strategy.order import EpochScript, ScriptedPush
from lsgd.strategy.recorded import ORDERS_FILE, RecordedOrders, parse_orders, read_order_file
from lsgd.strategy.shard import Shard, make_shards, restore_shards, server_lr, step_counts_of
from lsgd.strategy.tasks import gradient_weight, push_divisors, ticket_batches
from lsgd.strategy.virtual import VirtualTime, server_loads
from lsgd.workloads import Workload


@dataclass
class _SentPush:
    """Push whose gradient is computed, and which all processes have once `wait` has returned."""

    flat: Tensor
    """Tensor as in lsgd.strategy.computation; the second flag is the sum of all notes."""
    wait: Callable[[], None] | None
    left: int
    """Number of servers that have not applied the push yet."""


class ReplayStrategy(Strategy):
    """Strategy with simulated parameter servers, whose order of pushes is known in advance.

    It is that of backup, bounded and async with a drawn or recorded order. Between `begin` and
    `step` the model holds the values that the worker has read, otherwise the newest parameters.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        self.recipe, self.workload, self.comm, self.tally = recipe, workload, comm, tally
        self.hosted = sampler.contiguous_share(recipe.workers, comm.world_size, comm.rank)
        # Process 0 has the carried states of all workers; pushes carry their changes.
        carried = range(recipe.workers) if comm.rank == 0 else range(0)
        self.carried_states = workload.carried_states(model, carried, comm)
        self.work = open_computation(recipe, model, self.carried_states, self.hosted)
        self.nothing = zero_push(optim.trained_parameters(model), self.carried_states)
        """Zeros that a process adds to the push of another process."""
        self.found_inf = self.nothing.new_zeros((), dtype=torch.float32)
        one_gate = recipe.strategy.name == "backup"
        self.clips = recipe.server_optim.clip_norm is not None
        self.norms = norms = dict[int, Tensor]()
        """Gradient norm of server 0's last update, or of each server if gradients are clipped."""
        self.whole, shards = make_shards(
            model, recipe, self.found_inf, lambda server: norms[0 if one_gate else server]
        )
        self.gradients = shards[0].begins[-1]
        """Number of elements of all gradients, which a push begins with."""
        loads = server_loads([shard.slices for shard in shards], self.nothing.element_size())
        self.time: VirtualTime | RecordedOrders
        self.order: bytes | None = None
        """Content of the file strategy.order; None for a virtual clock."""
        if recipe.strategy.order == "virtual":
            self.time = VirtualTime(recipe, loads)
        else:
            self.order = read_order_file(recipe)
            orders = parse_orders(self.order, Path(recipe.strategy.order))
            self.time = RecordedOrders(recipe, orders)
        self.servers = [shards] if one_gate else [[shard] for shard in shards]
        """Shards by server; all in one list where one gate decides for all servers."""
        # A process computes its next pushes while this many others are under way.
        self.one_gate = one_gate
        under_way = recipe.update_workers if one_gate else recipe.workers
        self.lag = 0 if comm.world_size == 1 else under_way
        minutes = recipe.checkpoint_minutes if comm.rank == 0 else 0.0
        self.save_after = 60 * minutes or math.inf
        self.saved = time.monotonic()
        self.leave = self.save = False
        self.next_step = 0
        self.sent: dict[int, _SentPush] = {}
        self.flags: dict[int, Tensor] = {}
        """NaN flag and note of each push that has not been examined yet."""
        self.copies: dict[tuple[int, int], list[Tensor]] = {}
        """Older parameters that a later push still reads, by server and version."""
        self.newest: dict[int, list[Tensor]] = {}
        """Newest parameters of the servers for which the model currently holds older ones."""
        self._start_epoch(0)

    @property
    def script(self) -> EpochScript:
        """Script of the current epoch: which parameter versions each push reads and updates."""
        return self.time.script(self.begun)

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[StepTask]:
        """Yield a task for each training step, with the micro-batches of this process's workers.

        A recorded order may end within an epoch, and the tasks end with it. `synchronize` raises
        the UsageError, since a loader reaches this end while earlier pushes are still to be
        computed.
        """
        script = self.time.script(epoch)
        for step in steps:
            of_epoch = step % self.recipe.steps_per_epoch
            if of_epoch == len(script.steps):
                return
            pushes = [script.pushes[number] for number in script.steps[of_epoch]]
            passes = [
                MicroBatch(epoch, examples, range(push.worker, push.worker + 1), of_epoch)
                for push in pushes
                for examples in self._batches(epoch, push)
            ]
            yield StepTask(
                step,
                divisor=sum(self._weight(epoch, push) for push in pushes),
                active_workers=len(pushes),
                micro_batches=[each for each in passes if each.workers.start in self.hosted],
            )

    def begin(self, task: StepTask, *, stop_requested: bool) -> None:
        """Load the parameters that this process's first push of a task has read, if it has one."""
        epoch, of_epoch = divmod(task.step, self.recipe.steps_per_epoch)
        if epoch != self.begun:
            self._start_epoch(epoch)
        numbers = self.script.steps[of_epoch]
        self.to_send = iter(numbers)
        self.mine = iter([i for i in numbers if self.script.pushes[i].worker in self.hosted])
        self.last_of_task = numbers[-1]
        self.note = STOP_NOTE if stop_requested else 0.0
        if time.monotonic() - self.saved >= self.save_after:
            self.saved = time.monotonic()
            self.note += SAVE_NOTE
        # A dry run leaves out the steps between, and no later push reads their updates.
        self.given = numbers[0] - 1
        self.held: list[int] | None = None
        """The versions that the model holds for the next push of this process; None: the newest."""
        self._read_next()

    def backward(self, loss: Tensor) -> None:
        """Run a backward pass of this process's next push, and send the push after its last one."""
        assert self.coming is not None
        self.work.backward(loss)
        self.left -= 1
        if not self.left:
            self._send(self.coming, self.work.push())
            self._read_next()

    def step(self, task: StepTask) -> None:
        """Make the updates whose pushes have arrived; the newest pushes may still be under way."""
        self._load_newest()
        self.given, self.next_step = self.last_of_task, task.step + 1
        self._apply(self.given - self.lag)

    def poll(self) -> bool:
        """Return whether a checkpoint is due, by the notes of the pushes received so far.

        Raises DivergedError or PreemptedError by the flags and notes of these pushes.
        """
        self._examine(self.given - self.lag)
        if self.leave:
            raise PreemptedError
        save, self.save = self.save, False
        return save

    def synchronize(self) -> bool:
        """Apply all pushes of the finished steps, and synchronize the carried states.

        Raises UsageError if a recorded order ends within the epoch.
        """
        self._apply(self.given)
        self._examine(self.given)
        of_epoch = self.next_step % self.recipe.steps_per_epoch
        if of_epoch and of_epoch == len(self.script.steps):
            raise UsageError(
                f"strategy.order={self.recipe.strategy.order} ends after step {self.next_step}, "
                "where the recorded run ended, and this run has reached that step"
            )
        self.save, self.saved = False, time.monotonic()
        for part in self.carried_states:
            part.write_to_model(partial(all_reduce_, self.comm))
        return False

    def state(self) -> dict[str, Any]:
        """Return for a checkpoint the optimizer state, parameters still read, and pending pushes.

        The parameters are older ones that a later push still reads; pending pushes are computed and
        not applied at all servers.
        """
        for server in self.servers:
            server[0].export_settings()
        epoch = self.next_step // self.recipe.steps_per_epoch
        return self.whole.state_dict() | {
            "virtual_seconds": self.time.epoch_start(epoch),
            "versions": list(self.version),
            "read": [[*version, values] for version, values in self.copies.items()],
            "under_way": [[number, sent.flat] for number, sent in self.sent.items()],
            "steps": step_counts_of(self._shards()),
            **self.work.state(self.comm),
        }

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Restore the state, with the pushes not applied yet of a checkpoint within an epoch."""
        restore_shards(self.whole, self._shards(), state)
        self.work.restore(state)
        self.next_step = step
        epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        if isinstance(self.time, VirtualTime):
            self.time.begins[epoch] = state["virtual_seconds"]
        self._start_epoch(epoch)
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
            self.sent[number] = _SentPush(flat.to(device), None, left)

    def epoch_sums(self) -> MetricSumsState:
        """Return the training-metric sums of this epoch, added up over all processes."""
        return self.tally.state(partial(all_reduce_, self.comm))

    def save_artifacts(self, folder: Path) -> dict[str, str]:
        """Copy the file of recorded orders, if any, into the run folder, for a resume."""
        path = folder / ORDERS_FILE
        if self.order and not path.exists():
            with atomic_write(path) as file:
                file.write(self.order)
        return {}

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the gradient norm of server 0's last update, and statistics of the pushes.

        With local steps the gradient is the pseudo-gradient of the outer rule. The statistics are
        those of the virtual clock or the recorded order since the last row.
        """
        self._apply(self.given)
        self._examine(self.given)
        return {"gradient_norm": self.norms[0].item(), **self.time.row(self.next_step - 1)}

    def _start_epoch(self, epoch: int) -> None:
        """Start an epoch, for which all workers have read the current parameters."""
        self.begun = epoch
        self.version = [0 for _ in self.servers]
        self.given = self.arrived = self.examined = -1
        """Last push of the finished tasks, last one received, and last one with its flags read."""
        self.sent, self.flags, self.copies, self.newest = {}, {}, {}, {}

    def _read_next(self) -> None:
        """Load the parameters that this process's next push is computed with into the model.

        Does nothing if there is no further push. All pushes of an update have read the same
        versions, except those that server 0 never received.
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
        batches = self._batches(self.begun, push)
        divisors = push_divisors(self.recipe, self.workload, batches)
        self.left = len(divisors)
        begun = self.begun * self.recipe.steps_per_epoch
        self.work.begin(push.worker, begun + push.read[0], divisors)

    def _load_newest(self) -> None:
        for server, newest in self.newest.items():
            self._write(server, newest)
        self.newest = {}

    def _batches(self, epoch: int, push: ScriptedPush) -> list[NDArray[np.int64]]:
        return ticket_batches(self.recipe, self.workload, epoch, push.ticket)

    def _weight(self, epoch: int, push: ScriptedPush) -> int:
        return sum(
            gradient_weight(self.workload, examples) for examples in self._batches(epoch, push)
        )

    def _send_others(self, until: int | None) -> None:
        """Add zeros to the all-reduces of other processes' pushes before this push."""
        for number in self.to_send:
            if number == until:
                return
            self._send(number, self.nothing.clone())

    def _send(self, number: int, flat: Tensor) -> None:
        """Start the all-reduce by which a push gets from its worker's process to all processes."""
        if number == self.last_of_task:
            flat[-1] = self.note
        wait = None
        if self.comm.world_size > 1:
            wait = self.comm.start_all_reduce_(flat, f"push {number}")
        applied = self.script.pushes[number].applied
        self.sent[number] = _SentPush(flat, wait, sum(version >= 0 for version in applied))

    def _receive(self, last: int) -> None:
        """Wait until all pushes up to this one have arrived from the processes of their workers."""
        # In the order in which the sums were started, on all processes.
        while self.arrived < last:
            self.arrived += 1
            sent = self.sent.get(self.arrived)
            if sent is None:
                continue  # a dry run leaves out steps
            if sent.wait:
                sent.wait()
                sent.wait = None  # a kept handle keeps its library's threads after the job
            norm = exact_norm(sent.flat[: self.gradients])
            doubt = (0 * (sent.flat[-2] + norm)).isnan()
            self.found_inf.logical_or_(doubt)
            self.flags[self.arrived] = torch.stack((doubt.to(sent.flat.dtype), sent.flat[-1]))

    def _examine(self, last: int) -> None:
        """Check the pushes up to this one for divergence, stop requests and due checkpoints."""
        self._receive(last)
        numbers = [number for number in self.flags if self.examined < number <= last]
        self.examined = max(self.examined, last)
        if not numbers:
            return
        # All at once, since the host waits for the device to read them.
        flags = torch.stack([self.flags.pop(number) for number in numbers])
        for number, (doubt, note) in zip(numbers, flags.tolist(), strict=True):
            if doubt:
                self._receive(self.given)  # or the others would wait in their all-reduce
                raise divergence(self._step_of(number))
            self.leave |= note >= STOP_NOTE
            self.save |= note == SAVE_NOTE

    def _step_of(self, number: int) -> int:
        """Return the step of the run in which a push is computed."""
        of_epoch = next(i for i, each in enumerate(self.script.steps) if number in each)
        return self.begun * self.recipe.steps_per_epoch + of_epoch

    def _load(self, read: list[int]) -> None:
        """Load these versions of the parameters into the model, and store the newest elsewhere."""
        for server, version in enumerate(read):
            while self.version[server] < version:
                self._update(server)
            if self.version[server] > version:
                self.newest[server] = self._copy(server)
                self._write(server, self.copies[server, version])

    def _apply(self, last: int) -> None:
        """Make all parameter updates that need no push after this one."""
        if last < 0:
            return  # after the last epoch there is no script
        for server, updates in enumerate(self.script.updates):
            while self.version[server] < len(updates):
                if updates[self.version[server]][-1] > last:
                    break
                self._update(server)
        for version in [v for v in self.copies if self.script.last_read[v] <= self.given]:
            del self.copies[version]

    def _update(self, server: int) -> None:
        """Make the next update of a simulated server's parameters by its pushes."""
        version = self.version[server]
        if self.script.last_read.get((server, version), -1) > self.given:
            self.copies[server, version] = self._copy(server)
        numbers = self.script.updates[server][version]
        if all(number in self.sent for number in numbers):
            self._receive(numbers[-1])
            push, *others = [self.sent[number].flat for number in numbers]
            whole = self._update_weight(numbers)
            if others or self.clips or whole:
                push = push.clone()  # clipping works in place, and other servers need the original
                for other in others:
                    push += other
            if whole:
                push[: self.gradients] *= self.recipe.batch_size / whole
            if server == 0 or self.clips:
                self.norms[server] = exact_norm(push[: self.gradients])
            read = self.script.pushes[numbers[-1]].read[server]
            lr = server_lr(self.recipe, self.begun, version, read)
            for shard in self.servers[server]:
                shard.apply(shard.slices_of(push), lr)
            if server == 0:
                self._move_parts(push, len(numbers))
            for number in numbers:
                self.sent[number].left -= 1
                if not self.sent[number].left:
                    del self.sent[number]
        self.version[server] += 1

    def _update_weight(self, numbers: list[int]) -> int:
        """Return the weight of an update's examples, or 0 if its sum needs no rescaling."""
        if not self.one_gate:
            return 0
        whole = sum(self._weight(self.begun, self.script.pushes[number]) for number in numbers)
        return 0 if whole == self.recipe.batch_size else whole

    def _move_parts(self, push: Tensor, active_workers: int) -> None:
        for part, seen in state_sections(push, self.carried_states):
            if self.comm.rank == 0:
                part.pending_update.copy_(seen)
            part.end_step(active_workers)

    def _copy(self, server: int) -> list[Tensor]:
        return [value for shard in self.servers[server] for value in shard.copy()]

    def _write(self, server: int, values: list[Tensor]) -> None:
        rest = iter(values)
        for shard in self.servers[server]:
            shard.write([next(rest) for _ in shard.slices])

    def _shards(self) -> list[Shard]:
        return [shard for server in self.servers for shard in server]
