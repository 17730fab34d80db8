"""Synchronous SGD on parameter servers, with the same sums and updates as all-reduce.

In a step every process with workers sends each server its slices of the gradient. A server adds
them up, updates its slices of the parameters and sends these to all processes, so that each has the
whole model at the end of the step. A flag and a note are sent along, as in the buckets of a
Reducer. Of embedding tables only rows are sent, in both directions, if the recipe says so
(lsgd.strategy.sparse_rows).
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, MessagingComm, all_reduce_
from lsgd.comm.single import SingleComm
from lsgd.errors import UsageError
from lsgd.job.device import needs_pinned_memory, synchronize
from lsgd.metric_sums import MetricSums
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.exact_norm import exact_norm
from lsgd.strategy import StepTask
from lsgd.strategy.allreduce import AllReduce
from lsgd.strategy.placement import Slice, place
from lsgd.strategy.reducer import Reducer
from lsgd.strategy.shard import Shard, flat_view, load_model_optimizer, make_model_optimizer
from lsgd.strategy.sparse_rows import ServedTable, sparse_tables, take_gradient
from lsgd.strategy.virtual import VirtualTime, server_loads
from lsgd.workloads import Workload


class PackedSlices:
    """Slices of tensors on a device packed into one flat buffer, followed by some numbers.

    `message` is the copy of the buffer on the host, which processes send to each other.
    """

    def __init__(
        self, slices: Sequence[Tensor], numbers: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.slices, self.on_host = list(slices), device.type == "cpu"
        self.is_async = needs_pinned_memory(device)
        sizes = [each.numel() for each in slices]
        self.flat = torch.zeros(sum(sizes) + numbers, dtype=dtype, device=device)
        *self.copies, self.numbers = self.flat.split([*sizes, numbers])
        self.message = self.flat
        if not self.on_host:
            self.message = torch.empty_like(self.flat, device="cpu", pin_memory=self.is_async)

    def pack(self) -> None:
        """Copy the tensor slices into the flat buffer."""
        if self.slices:
            torch._foreach_copy_(self.copies, self.slices)

    def unpack(self) -> None:
        """Copy the flat buffer back into the tensor slices."""
        if self.slices:
            torch._foreach_copy_(self.slices, self.copies)

    def start_to_host(self) -> None:
        """Start copying the flat buffer to the message on the host, without waiting for it."""
        if not self.on_host:
            self.message.copy_(self.flat, non_blocking=True)

    def from_host(self) -> None:
        """Copy a received message from the host to the flat buffer on the device."""
        if not self.on_host:
            self.flat.copy_(self.message, non_blocking=self.is_async)


class Server:
    """Parameter server as seen by one process; only its home process has all of its data."""

    def __init__(
        self,
        number: int,
        home: int,
        shard: Shard,
        push: PackedSlices,
        reply: PackedSlices,
        tables: list[ServedTable],
    ) -> None:
        self.number, self.home, self.shard = number, home, shard
        self.push = push
        """Gradient slices of this process's workers, with its flag and its note."""
        self.reply = reply
        """New values, with the sum of flags, the sum of notes and the norm of the gradient."""
        self.tables = tables
        """Rows on this server of the tables whose gradients are sparse."""
        self.pushes: dict[int, Tensor] = {}
        """Received messages by rank, in rank order; empty on processes other than the home.

        The entry of the home process itself is its own push on its device.
        """

    def add_up(self, found_inf: Tensor) -> Tensor:
        """Return the sum of the dense gradient pushes; set `found_inf` if any sum is not finite."""
        total = torch.zeros_like(self.reply.flat[:-1])
        for push in self.pushes.values():
            # A push may be in half precision, and reaches the device by one copy from the host.
            total += push.to(total.device, non_blocking=self.reply.is_async)
        norms = [table.add_up() for table in self.tables]
        self.norm = reduce(torch.hypot, norms, exact_norm(total[:-2]))
        found_inf.logical_or_((0 * (total[-2] + self.norm)).isnan())
        return total

    def update(self, total: Tensor, lr: float) -> None:
        """Update slices and table rows by the summed pushes; with `found_inf` nothing changes."""
        gradient, (flag, note) = total[:-2], total[-2:]
        self.shard.apply(gradient.split([value.numel() for value in self.shard.values]), lr)
        for table in self.tables:
            table.update(lr)
        self.reply.numbers.copy_(torch.stack((flag, note, self.norm)))


class SyncServers(AllReduce):
    """Synchronous SGD strategy with parameter servers, whose updates equal those of all-reduce.

    With a central topology the last processes host servers only, unless there is just one process.
    A server reports a non-finite gradient in its reply to all processes. By then another server may
    have made its part of the update, in a model that is neither evaluated nor saved.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        if comm.world_size > 1 and not isinstance(comm, MessagingComm):
            raise UsageError(
                f"strategy=sync sends messages between processes, and {comm.library} is used for "
                "all-reduce only; write comm=torch, or strategy=allreduce"
            )
        super().__init__(recipe, workload, model, comm, tally)
        self.messenger = cast(MessagingComm, comm)  # never called by a single process
        self.processes = range(comm.world_size)
        self.pushing = self.processes[: recipe.strategy.worker_processes(comm.world_size)]
        sizes = [parameter.numel() for parameter in optim.trained_parameters(model)]
        whole = place(sizes, recipe.strategy.servers, recipe.strategy.placement)
        for number in self.tables:
            sizes[number] = 0
        placed = place(sizes, recipe.strategy.servers, recipe.strategy.placement)
        self.servers = list(self._open(model, placed))
        itemsize = self.servers[0].reply.flat.element_size()
        self.time = VirtualTime(recipe, server_loads(whole, itemsize))
        self.at_home = [server for server in self.servers if server.home == comm.rank]
        clips = recipe.optim.clip_norm is not None
        self.share_norm = self._share_norm if clips else lambda: None
        """Function that gives all servers the norm of the whole gradient, if they clip."""

    def _make(self, model: nn.Module) -> tuple[Reducer, torch.optim.Optimizer]:
        """Create a reducer of this process's gradients alone, and the optimizer of all shards."""
        self.tables = sparse_tables(model) if self.recipe.strategy.sparse_rows else {}
        """Parameters of which only rows are sent, by parameter number."""
        dense = [
            each
            for number, each in enumerate(optim.trained_parameters(model))
            if number not in self.tables
        ]
        size = self.recipe.comm.bucket_mb
        reducer = Reducer(dense, SingleComm(), bucket_mb=size, compression="none")
        return reducer, make_model_optimizer(model, self.recipe)

    def _open(self, model: nn.Module, placed: Sequence[Sequence[Slice]]) -> Iterator[Server]:
        """Create the servers, on the processes without workers or, if there are none, on all."""
        gradients = {
            number: flat_view(cast(Tensor, parameter.grad))
            for number, parameter in enumerate(optim.trained_parameters(model))
            if number not in self.tables
        }
        dtype, device = self.reducer.flag.dtype, self.reducer.flag.device
        on_wire = torch.float16 if self.recipe.gradient_compression == "fp16" else dtype
        homes = self.processes[len(self.pushing) :] or self.processes
        for number, all_slices in enumerate(placed):
            slices = [each for each in all_slices if each.parameter in gradients]
            shard = Shard(
                model,
                self.optimizer,
                slices,
                self.recipe,
                self.reducer.found_inf,
                norm=lambda: self.reducer.gradient_norm,
            )
            pushed = [gradients[each.parameter][each.begin : each.end] for each in slices]
            push = PackedSlices(pushed, 2, on_wire, device)
            reply = PackedSlices(shard.values, 3, dtype, device)
            home = homes[number % len(homes)]
            tables = [
                ServedTable(
                    table,
                    self.recipe,
                    self.messenger,
                    self.reducer.found_inf,
                    norm=lambda: self.reducer.gradient_norm,
                    server=number,
                    home=home,
                    pushing=self.pushing,
                    on_wire=on_wire,
                    tag=count * len(placed) + number,
                )
                for count, table in enumerate(self.tables.values(), start=1)
            ]
            server = Server(number, home, shard, push, reply, tables)
            if server.home == self.comm.rank:
                # Its own too, even without workers, for the note of a stop request to this process.
                server.pushes = {
                    rank: push.flat
                    if rank == home
                    else torch.empty_like(push.message, pin_memory=needs_pinned_memory(device))
                    for rank in dict.fromkeys((*self.pushing, home))
                }
            yield server

    def step(self, task: StepTask) -> None:
        """Push the gradients, update the servers of this process, and receive new parameters."""
        self._push()
        self._update(task)
        self._pull()
        self._end(task)

    def _push(self) -> None:
        """Send this process's gradient slices to the servers; receive those for its own servers."""
        rank, waits = self.comm.rank, []
        self.reducer.start_sums()
        gradients = [take_gradient(table) for table in self.tables.values()]
        sends = [each for each in self.servers if rank in self.pushing and each.home != rank]
        for server in [*self.at_home, *sends]:
            server.push.pack()
            server.push.numbers.copy_(torch.stack((self.reducer.flag, self.reducer.note)))
        self._to_host([server.push for server in sends])
        for server in self.servers:
            for table, gradient in zip(server.tables, gradients, strict=True):
                waits += table.start_push(gradient)
            if server.home == rank:
                waits += [
                    self.messenger.start_receive(push, sender, server.number)
                    for sender, push in server.pushes.items()
                    if sender != rank
                ]
            elif rank in self.pushing:
                waits.append(
                    self.messenger.start_send(server.push.message, server.home, server.number)
                )
        for wait in waits:
            wait()

    def _to_host(self, packed: Sequence[PackedSlices]) -> None:
        """Copy packed slices to the host, with one wait for the device."""
        for each in packed:
            each.start_to_host()
        if packed:
            synchronize(self.reducer.flag.device)

    def _update(self, task: StepTask) -> None:
        totals = [server.add_up(self.reducer.found_inf) for server in self.at_home]
        self.share_norm()
        for server, total in zip(self.at_home, totals, strict=True):
            server.update(total, self.recipe.lr(task.step))

    def _share_norm(self) -> None:
        """Compute the norm of the whole gradient on all processes by an all-reduce."""
        dtype, device = self.servers[0].reply.flat.dtype, self.reducer.found_inf.device
        norms = torch.zeros(len(self.servers), dtype=dtype, device=device)
        for server in self.at_home:
            norms[server.number] = server.norm
        all_reduce_(self.comm, norms)
        self.reducer.gradient_norm = torch.linalg.vector_norm(norms)

    def _pull(self) -> None:
        """Send the new parameters of this process's servers, and receive those of the others."""
        rank, waits = self.comm.rank, []
        replies = [server.reply for server in self.at_home if len(self.processes) > 1]
        for reply in replies:
            reply.pack()
        self._to_host(replies)
        for server in self.servers:
            for table in server.tables:
                waits += table.start_pull()
            if server.home == rank:
                waits += [
                    self.messenger.start_send(server.reply.message, receiver, server.number)
                    for receiver in self.processes
                    if receiver != rank
                ]
            else:
                waits.append(
                    self.messenger.start_receive(server.reply.message, server.home, server.number)
                )
        for wait in waits:
            wait()

    def _end(self, task: StepTask) -> None:
        for server in self.servers:
            if server.home != self.comm.rank:
                server.reply.from_host()
                server.reply.unpack()
                for table in server.tables:
                    table.unpack()
        flags, notes, norms = torch.stack([server.reply.numbers for server in self.servers]).T
        self.reducer.gradient_norm = norm = torch.linalg.vector_norm(norms)
        self.reducer.found_inf.logical_or_((0 * (flags.sum() + norm)).isnan())
        self.reducer.flags[1] = notes.max()
        for part in self.carried_states:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1
        self.guard.watch(task.step)

    def state(self) -> dict[str, Any]:
        """Return the whole model's optimizer state for a checkpoint, complete on process 0 only.

        Every process can still detect a non-finite momentum, since the parameters that it has
        updated are not finite either, and every process has these.
        """
        rank, messages, waits = self.comm.rank, [], []
        for server in self.servers:
            momenta = server.shard.state_buffers()
            if momenta and server.home != 0 and rank in (0, server.home):
                flat = server.reply.flat
                messages.append(message := PackedSlices(momenta, 0, flat.dtype, flat.device))
                if rank:
                    message.pack()
                    self._to_host([message])
                    waits.append(self.messenger.start_send(message.message, 0, server.number))
                else:
                    start = self.messenger.start_receive
                    waits.append(start(message.message, server.home, server.number))
        for wait in waits:
            wait()
        for message in messages if rank == 0 else ():
            message.from_host()
            message.unpack()
        for server in self.at_home:
            server.shard.export_settings()
        state = self.optimizer.state_dict()
        # Only processes with servers have the current lr and other group settings.
        groups = self.comm.gather_objects(state["param_groups"])[self.servers[0].home]
        return state | {"param_groups": groups}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Restore the optimizer state from a checkpoint."""
        load_model_optimizer(self.optimizer, state)
        for server in self.servers:
            server.shard.bind_state()
        self.next_step = step

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the gradient norm, the traffic of the busiest server, and virtual-time waits.

        `wire_bytes` is what the busiest server of this job receives and sends in a step. The other
        columns are of virtual time, where each worker has a machine of its own.
        """
        peers = len(self.processes) - 1
        bytes_ = [
            server.push.flat.nbytes * sum(rank != server.home for rank in self.pushing)
            + server.reply.flat.nbytes * peers
            + sum(table.nbytes() for table in server.tables)
            for server in self.servers
        ]
        virtual = self.time.row(self.next_step - 1)
        return super().step_metrics() | {
            "wire_bytes": max(bytes_),
            **{name: virtual[name] for name in ("queue_wait", "server_bytes", "virtual_seconds")},
        }

    def phases(self) -> list[tuple[str, object, str]]:
        """Return the phases of a training step to time; waits for messages are communication."""
        return [
            ("optimizer", self.reducer, "start"),
            ("backward", self.reducer, "backward"),
            ("communication", self, "_push"),
            ("optimizer", self, "_update"),
            ("communication", self, "_pull"),
            ("optimizer", self, "_end"),
        ]
