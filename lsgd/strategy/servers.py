"""Synchronous SGD on parameter servers: the sums and updates of all-reduce, made in other places.

In a step every process with workers sends each server its slices of the gradient. A server adds
them up, makes the update of its slices and sends these to all processes, each of which has the
whole model when the step ends. A flag and a note go along, as in the buckets of a Reducer.
Of the tables of embeddings only rows go, both ways, if the recipe says so (lsgd.strategy.rows).
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor, nn

from lsgd.comm import Comm, Messenger, sum_
from lsgd.comm.single import SingleComm
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.strategy import Task
from lsgd.strategy.allreduce import AllReduce
from lsgd.strategy.placement import Slice, place
from lsgd.strategy.reducer import Reducer
from lsgd.strategy.rows import ServedTable, sparse_tables, take_gradient
from lsgd.strategy.shard import Shard, in_memory, load_whole, make_whole
from lsgd.strategy.virtual import VirtualTime, server_loads
from lsgd.tally import Tally
from lsgd.workloads import Workload


class PackedSlices:
    """Slices that lie all over a device as one tensor on the CPU, with some numbers behind them."""

    def __init__(self, slices: Sequence[Tensor], numbers: int, dtype: torch.dtype) -> None:
        self.slices = slices
        sizes = [each.numel() for each in slices]
        self.flat = torch.zeros(sum(sizes) + numbers, dtype=dtype)
        *self.copies, self.numbers = self.flat.split([*sizes, numbers])

    def pack(self, *numbers: Tensor) -> None:
        """Take the slices as they are now, and these numbers."""
        for copy, each in zip(self.copies, self.slices, strict=True):
            copy.copy_(each)
        if numbers:
            self.numbers.copy_(torch.stack(numbers))

    def unpack(self) -> None:
        """Write into the slices what has come for them."""
        for copy, each in zip(self.copies, self.slices, strict=True):
            each.copy_(copy)


class Server:
    """A server as one process sees it; the process that is its home has all of it."""

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
        """The gradient of this process's workers; its flag and its note."""
        self.reply = reply
        """The new values; the sums of flags and notes, and the norm of the gradient."""
        self.tables = tables
        """Its rows of the tables whose gradients are sparse."""
        self.pushes: dict[int, Tensor] = {}
        """At home, what comes from the processes with workers and from this one, in the order of
        their ranks."""

    def add_up(self, found_inf: Tensor) -> Tensor:
        """The sum of the dense pushes; what is not finite of all there are raises the flag."""
        total = torch.zeros_like(self.reply.flat[:-1])
        for push in self.pushes.values():
            total += push  # which may be in half precision
        total = total.to(found_inf.device)
        norms = [table.add_up() for table in self.tables]
        self.norm = reduce(torch.hypot, norms, torch.linalg.vector_norm(total[:-2]))
        found_inf.logical_or_((0 * (total[-2] + self.norm)).isnan())
        return total

    def update(self, total: Tensor, lr: float) -> None:
        """Make the update by a sum of pushes, unless something was not finite."""
        gradient, (flag, note) = total[:-2], total[-2:]
        self.shard.apply(gradient.split([value.numel() for value in self.shard.values]), lr)
        for table in self.tables:
            table.update(lr)
        self.reply.pack(flag, note, self.norm)


class SyncServers(AllReduce):
    """The strategy of all-reduce and the same updates, by servers that wait for all pushes.

    With a central topology the last processes have servers only, unless there is just one process.
    What one server has seen that is not finite all processes know from its reply; by then another
    may have made its part of the update, in a model that is neither evaluated nor saved.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        if comm.world_size > 1 and not isinstance(comm, Messenger):
            raise Refused(
                f"strategy=sync sends messages from process to process, and {comm.library} is used "
                "for sums alone; write comm=torch, or strategy=allreduce"
            )
        super().__init__(recipe, workload, model, comm, tally)
        self.messenger = cast(Messenger, comm)  # to which a single process gives no message
        self.processes = range(comm.world_size)
        self.pushing = self.processes[: recipe.strategy.worker_processes(comm.world_size)]
        sizes = [parameter.numel() for parameter in model.parameters()]
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
        """Lets every server know the norm of the whole gradient before its update, if it clips."""

    def _make(self, model: nn.Module) -> tuple[Reducer, torch.optim.Optimizer]:
        """What has the gradients of this process alone, and what has the momentum of all shards."""
        self.tables = sparse_tables(model) if self.recipe.strategy.sparse_rows else {}
        """The parameters of which only rows travel, by their numbers."""
        dense = [
            each for number, each in enumerate(model.parameters()) if number not in self.tables
        ]
        size = self.recipe.comm.bucket_mb
        reducer = Reducer(dense, SingleComm(), bucket_mb=size, compression="none")
        return reducer, make_whole(model, self.recipe)

    def _open(self, model: nn.Module, placed: Sequence[Sequence[Slice]]) -> Iterator[Server]:
        """The servers, on the processes without workers if there are any, else on all."""
        gradients = {
            number: in_memory(cast(Tensor, parameter.grad))
            for number, parameter in enumerate(model.parameters())
            if number not in self.tables
        }
        dtype = self.reducer.flag.dtype
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
            push, reply = PackedSlices(pushed, 2, on_wire), PackedSlices(shard.values, 3, dtype)
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
                server.pushes = {rank: torch.empty_like(push.flat) for rank in self.pushing}
                # Also of a process without workers, which may be the one that is told to leave.
                server.pushes[server.home] = push.flat
            yield server

    def give(self, task: Task) -> None:
        """Push, let the servers of this process make the update, and take the replies of all."""
        self._push()
        self._update(task)
        self._pull()
        self._end(task)

    def _push(self) -> None:
        rank, waits = self.comm.rank, []
        gradients = [take_gradient(table) for table in self.tables.values()]
        for server in self.servers:
            for table, gradient in zip(server.tables, gradients, strict=True):
                waits += table.start_push(gradient)
            if rank in (*self.pushing, server.home):
                server.push.pack(self.reducer.flag, self.reducer.note)
            if server.home == rank:
                waits += [
                    self.messenger.start_receive(push, sender, server.number)
                    for sender, push in server.pushes.items()
                    if sender != rank
                ]
            elif rank in self.pushing:
                waits.append(
                    self.messenger.start_send(server.push.flat, server.home, server.number)
                )
        for wait in waits:
            wait()

    def _update(self, task: Task) -> None:
        totals = [server.add_up(self.reducer.found_inf) for server in self.at_home]
        self.share_norm()
        for server, total in zip(self.at_home, totals, strict=True):
            server.update(total, self.recipe.lr(task.step))

    def _share_norm(self) -> None:
        dtype, device = self.servers[0].reply.flat.dtype, self.reducer.found_inf.device
        norms = torch.zeros(len(self.servers), dtype=dtype, device=device)
        for server in self.at_home:
            norms[server.number] = server.norm
        sum_(self.comm, norms)
        self.reducer.gradient_norm = torch.linalg.vector_norm(norms)

    def _pull(self) -> None:
        rank, waits = self.comm.rank, []
        for server in self.servers:
            for table in server.tables:
                waits += table.start_pull()
            if server.home == rank:
                waits += [
                    self.messenger.start_send(server.reply.flat, receiver, server.number)
                    for receiver in self.processes
                    if receiver != rank
                ]
            else:
                waits.append(
                    self.messenger.start_receive(server.reply.flat, server.home, server.number)
                )
        for wait in waits:
            wait()

    def _end(self, task: Task) -> None:
        for server in self.servers:
            if server.home != self.comm.rank:
                server.reply.unpack()
                for table in server.tables:
                    table.unpack()
        flags, notes, norms = torch.stack([server.reply.numbers for server in self.servers]).T
        self.reducer.gradient_norm = norm = torch.linalg.vector_norm(norms)
        self.reducer.found_inf.logical_or_((0 * (flags.sum() + norm)).isnan())
        self.reducer.flags[1] = notes.max()
        for part in self.parts:
            part.end_step(task.active_workers)
        self.next_step = task.step + 1
        self.guard.watch(task.step)

    def state(self) -> dict[str, Any]:
        """The state of the optimizer of the whole model; the momentum is whole on process 0 only.

        Where it is not finite, the parameters that it has moved are not either, and these every
        process has.
        """
        rank, messages, waits = self.comm.rank, [], []
        for server in self.servers:
            momenta = server.shard.momenta()
            if momenta and server.home != 0 and rank in (0, server.home):
                messages.append(message := PackedSlices(momenta, 0, server.reply.flat.dtype))
                if rank:
                    message.pack()
                    waits.append(self.messenger.start_send(message.flat, 0, server.number))
                else:
                    start = self.messenger.start_receive
                    waits.append(start(message.flat, server.home, server.number))
        for wait in waits:
            wait()
        for message in messages if rank == 0 else ():
            message.unpack()
        for server in self.at_home:
            server.shard.report()
        state = self.optimizer.state_dict()
        # The lr and what else belongs to groups is that of the servers.
        groups = self.comm.gather_objects(state["param_groups"])[self.servers[0].home]
        return state | {"param_groups": groups}

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Take up the momentum."""
        load_whole(self.optimizer, state)
        for server in self.servers:
            server.shard.link()
        self.next_step = step

    def now(self) -> dict[str, float | list[int]]:
        """The norm of the last gradient; wire_bytes, what the fullest server of this job gets and
        gives in a step; and how long pushes wait, the bytes of a server and the seconds in virtual
        time, where each worker has a machine of its own."""
        peers = len(self.processes) - 1
        bytes_ = [
            server.push.flat.nbytes * sum(rank != server.home for rank in self.pushing)
            + server.reply.flat.nbytes * peers
            + sum(table.nbytes() for table in server.tables)
            for server in self.servers
        ]
        virtual = self.time.row(self.next_step - 1)
        return super().now() | {
            "wire_bytes": max(bytes_),
            **{name: virtual[name] for name in ("queue_wait", "server_bytes", "virtual_seconds")},
        }

    def timed(self) -> list[tuple[str, object, str]]:
        """The wait for the pushes of others and for the replies is communication."""
        return [
            ("optimizer", self.reducer, "start"),
            ("backward", self.reducer, "backward"),
            ("communication", self, "_push"),
            ("optimizer", self, "_update"),
            ("communication", self, "_pull"),
            ("optimizer", self, "_end"),
        ]
