"""Asynchronous training in real time: each worker and each server is a process.

The first processes have one worker each; the servers are on the last processes, or share the
processes of the first workers (strategy.topology). Each worker has a connection of its own to each
server. The servers handle pushes in the order of arrival and record this order
(lsgd.strategy.recorded), with which the run can be replayed bit by bit on any processes. When the
order of an epoch has ended, all processes synchronize and receive the whole model.
"""

import copy
import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lsgd.comm import RERUN, Comm, ElasticComm, PairwiseComm, all_reduce_
from lsgd.comm.pair import ProcessPair
from lsgd.errors import PeerLostError, PreemptedError, StaleRestartError, UsageError
from lsgd.inputs import prefetch_limit
from lsgd.job import preemption
from lsgd.job.device import to_device, to_host
from lsgd.job.parent import parent_has_ended
from lsgd.metric_sums import MetricSums, MetricSumsState
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.exact_norm import exact_norm
from lsgd.rules.sampler import MicroBatch
from lsgd.strategy import StepTask, Strategy
from lsgd.strategy.computation import NUM_FLAGS, open_computation
from lsgd.strategy.gate import Tickets
from lsgd.strategy.guard import LOWER_LR, divergence
from lsgd.strategy.live_server import (
    LATEST,
    EpochOutcome,
    LiveServer,
    MessageLayout,
    MessageType,
)
from lsgd.strategy.push_scheduler import ReplyType
from lsgd.strategy.recorded import ORDERS_FILE, OrderHistory
from lsgd.strategy.shard import flat_view, make_shards, restore_shards, step_counts_of
from lsgd.strategy.tasks import gradient_weight, push_divisors, ticket_batches
from lsgd.strategy.virtual import make_gates, play_epoch
from lsgd.workloads import CarriedState, Workload

WHOLE = {4: torch.int32, 8: torch.int64}
"""Integer dtype by element size in bytes; tensors of other sizes are taken as bytes."""
T = TypeVar("T")
LOOK = 0.2
"""Seconds between two checks for a stop request by a process without a worker."""


class LiveStrategy(Strategy):
    """Strategy with real parameter servers, which handle pushes in the order of arrival.

    It is that of backup, bounded and async with strategy.order=live. The model of this process
    holds the values that its worker received last.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        if not isinstance(comm, PairwiseComm):
            raise UsageError(
                "strategy.order=live connects each worker with each server, which "
                f"{comm.library} cannot do; write comm=torch, or strategy.order=virtual"
            )
        self.recipe, self.workload, self.model = recipe, workload, model
        self.comm: PairwiseComm = comm
        self.tally = tally
        self.living = comm if isinstance(comm, ElasticComm) else None
        self.process = comm.rank
        self._assign_roles()
        settings = recipe.strategy
        serves = self.process in self.server_ranks
        self.served = copy.deepcopy(model) if serves else model
        """Model that this process's server updates; the worker computes with `model`."""
        # The process of server 0 has the carried states of all workers; pushes carry their changes.
        carried = range(recipe.workers) if self.process == self.server_ranks[0] else range(0)
        self.moved = workload.carried_states(self.served, carried, comm)
        """Carried states that server 0 updates; the worker of its process adds to others."""
        self.carried_states: tuple[CarriedState, ...] = workload.carried_states(
            model, carried, comm
        )
        self.parameters = optim.trained_parameters(model)
        self.work = open_computation(recipe, model, self.carried_states, self.hosted)
        self.norms = norms = [self.parameters[0].new_zeros(())]
        # A server makes no update by a push that is not finite, so this flag stays 0.
        finite = norms[0].new_zeros((), dtype=torch.float32)
        self.whole, self.shards = make_shards(self.served, recipe, finite, lambda _: norms[0])
        flats = [flat_view(parameter) for parameter in self.parameters]
        self.values = [
            [flats[each.parameter][each.begin : each.end] for each in shard.slices]
            for shard in self.shards
        ]
        """Slices of the model's parameters, by server."""
        self.one_gate = settings.name == "backup"
        gates = len(make_gates(settings, recipe.workers, recipe.tickets))
        self.orders = OrderHistory(recipe.workers, gates)
        self.next_step = 0
        self.layout: MessageLayout | None = None
        """Layout of all messages; None before the processes are connected."""
        self.row: list[float] = [0.0] * MessageLayout(0, len(tally.counts)).row_length
        """Sums of this epoch that server 0 sent last, in the order of MessageLayout.row_length."""
        self.server: LiveServer | None = None
        self.pairs: list[ProcessPair] = []
        """Connections of this process's worker, one to each server."""
        self.pids = ""
        self.open = False
        """Whether an order has begun that this process has not synchronized yet."""

    def _assign_roles(self) -> None:
        """Decide which processes have a worker or a server, and which workers may be lost.

        Raises PeerLostError if this process has taken the place of a lost server.
        """
        recipe, settings = self.recipe, self.recipe.strategy
        self.hosted = range(self.process, self.process + 1)
        if self.process >= recipe.workers:
            self.hosted = range(0)
        first_home = recipe.workers if settings.topology == "central" else 0
        self.server_ranks = [first_home + server for server in range(settings.servers)]
        """Rank of the process of each server."""
        serves = self.process in self.server_ranks
        if serves and self.living and self.living.is_outside_group:
            raise PeerLostError(
                f"process {self.process} was the server {self.server_ranks.index(self.process)}, "
                f"and its values are lost; {RERUN}"
            )
        comes_back = self.living is not None and not settings.pushes_deltas
        # Process 0 writes the run folder; with local steps a worker's momentum would be lost.
        others = {*range(1, recipe.workers)}.difference(self.server_ranks) if comes_back else ()
        self.replaceable = frozenset(others)
        """Workers that may be lost without ending the job.

        Where the parent of such a process ends, as an actor of Ray's does, only this process stops,
        and it sends no stop request to the others.
        """

    def tasks(self, epoch: int, steps: list[int]) -> Iterator[StepTask]:
        """Yield a task for each ticket (batch) that server 0 issues to this process's worker."""
        counted = self.tally.state(partial(all_reduce_, self.comm))
        self.tally.clear()
        done = float(self.next_step - epoch * self.recipe.steps_per_epoch)
        counts = [done, float(counted["loss"]), *map(float, counted["counts"])]
        self.row = self.shown = counts + [0.0] * (4 + LATEST)
        return self._tasks(epoch) if steps else iter(())

    def _tasks(self, epoch: int) -> Iterator[StepTask]:
        self._begin_order(epoch)
        while self.hosted and not self.over:
            if self.tickets:
                ticket = self.tickets.popleft()
                self.taken += 1
                batches = ticket_batches(self.recipe, self.workload, epoch, ticket)
                divisor = sum(gradient_weight(self.workload, examples) for examples in batches)
                passes = [MicroBatch(epoch, examples, self.hosted, ticket) for examples in batches]
                yield StepTask(self.next_step, divisor, active_workers=1, micro_batches=passes)
            elif self.given == self.taken:
                self._receive_replies()
            elif self.last:
                # The loader prefetches, and no ticket is left to prefetch.
                self.finished = True
                return
            else:
                raise RuntimeError(
                    f"the loader prefetches more than {self.orders.ahead} micro-batches"
                )

    def begin(self, task: StepTask, *, stop_requested: bool) -> None:
        """Start computing a push; the model already holds the parameters sent with its batch."""
        self.stop_requested |= stop_requested and not (
            self.process in self.replaceable and parent_has_ended()
        )
        read = self.epoch * self.recipe.steps_per_epoch + self.row[0]
        batches = [each.examples for each in task.micro_batches]
        self.work.begin(self.process, read, push_divisors(self.recipe, self.workload, batches))

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one of the losses whose gradients form a push."""
        self.work.backward(loss)

    def step(self, task: StepTask) -> None:
        """Push the gradient to all servers, and wait for the parameters that they reply."""
        self.given += 1
        self._push(task)
        before = self.row[0]
        self._receive_replies()
        # If a row became due since this worker's last reply, report the update at which it did.
        done = self.epoch * self.recipe.steps_per_epoch + int(self.row[0])
        due = done - done % self.recipe.log_steps
        self.next_step = due if due > done - (self.row[0] - before) else done

    def poll(self) -> bool:
        """Synchronize if the order of pushes has ended before this worker used all its tickets.

        Raises what ended the order; see `synchronize`.
        """
        if self.over and self.given < self.taken:
            self.synchronize()
        return False

    def synchronize(self) -> bool:
        """Wait for the end of this order of pushes; copy all servers' parameters to all processes.

        Returns whether an order has ended. Raises DivergedError, PreemptedError or PeerLostError if
        that ended the order early.
        """
        if ends := self.open:
            while self.hosted and not self.over:
                self._receive_replies()
            while self.server and not self.server.wait_until_ended(LOOK):
                if preemption.stop_requested():
                    self.server.request_stop()
            self.open = False
            self._end_order()
        for part in self.carried_states:
            part.write_to_model(partial(all_reduce_, self.comm))
        return ends

    def state(self) -> dict[str, Any]:
        """Return the servers' optimizer state and recorded orders of pushes, for a checkpoint."""
        for server, (shard, home) in enumerate(zip(self.shards, self.server_ranks, strict=True)):
            if self.process == home:
                shard.export_settings()
            self._copy_from_server(shard.state_buffers(), server)
        state = self.whole.state_dict()
        groups = self._gather_by_process(state["param_groups"])[self.server_ranks[0]]
        others = {"orders": self.orders.to_tensor(), "steps": step_counts_of(self.shards)}
        return state | {"param_groups": groups} | others | self.work.state(self.comm)

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Restore optimizer state and orders of pushes; the run continues with unused tickets."""
        restore_shards(self.whole, self.shards, state)
        self.work.restore(state)
        self.orders = OrderHistory.from_tensor(state["orders"])
        self.next_step = step

    def epoch_sums(self) -> MetricSumsState:
        """Return the training-metric sums of this epoch that server 0 sent last."""
        loss, *counts = self.row[1 : 2 + len(self.tally.counts)]
        state = {
            "counts": torch.tensor(counts, dtype=torch.int64),
            "loss": torch.tensor(loss, dtype=self.tally.loss.dtype),
        }
        return {name: each.to(self.tally.loss.device) for name, each in state.items()}

    def step_metrics(self) -> dict[str, float | list[int]]:
        """Return the gradient norm of server 0's last update and the staleness since the last row.

        The row has the mean and the counts of staleness, whose last bin is LATEST and more, and the
        number of dropped pushes, all as of the last reply to this worker.
        """
        norm, *since = (
            new if index == 0 else new - old
            for index, (new, old) in enumerate(
                zip(self.row[-LATEST - 4 :], self.shown[-LATEST - 4 :], strict=True)
            )
        )
        self.shown = self.row
        dropped, sum_of_staleness, *counts = map(int, since)
        largest = max((index for index, count in enumerate(counts) if count), default=0)
        return {
            "gradient_norm": norm,
            "staleness": sum_of_staleness / max(1, sum(counts)),
            "staleness_max": largest,
            "staleness_counts": counts[: largest + 1],
            "dropped": dropped,
        }

    def save_artifacts(self, folder: Path) -> dict[str, str]:
        """Write the recorded orders of pushes; return their hash and all processes' pids."""
        self.orders.save(folder / ORDERS_FILE)
        return {"order": self.orders.digest, "pids": self.pids}

    # --- The beginning and the end of an order -------------------------------------------------

    def _begin_order(self, epoch: int) -> None:
        """Start an order of pushes: start the server with this model, receive the first reply."""
        if self.layout is None:
            self._connect()
        assert self.layout is not None
        recipe = self.recipe
        self.epoch = epoch
        tickets = Tickets(recipe.tickets, ahead=self.orders.ahead)
        versions = [0 for _ in self.server_ranks]
        if orders := self.orders.epochs.get(epoch):
            script = play_epoch(recipe, orders, tickets, self.orders.aheads_of(epoch))
            if script.pushes:
                made = [len(updates) for updates in script.updates]
                versions = made * len(versions) if self.one_gate else made
            for worker in range(recipe.workers):
                tickets.give_back(worker)
        self.tickets: deque[int] = deque()
        self.given = self.taken = 0
        """Number of pushes sent, and number of tickets passed to the loader."""
        self.life = 0.0
        """Number of this worker's returns to the order that server 0 sent last."""
        self.over = self.last = self.finished = self.stop_requested = False
        self.paused = self.living is not None and self.living.is_outside_group
        """Whether this worker has left the gates of the servers other than server 0."""
        if self.server:
            number = self.server.number
            served, own = self.served.state_dict(), self.model.state_dict()
            torch._foreach_copy_(list(served.values()), list(own.values()))
            for part, moved in zip(self.carried_states, self.moved, strict=True):
                moved.restore(part.state(lambda _: None))
            gates = make_gates(recipe.strategy, recipe.workers, tickets.left)
            gate = gates[0 if self.one_gate else number]
            self.server.begin(gate, None if number else tickets, versions[number], self.row, epoch)
        self.open = True
        if self.hosted:
            self._receive_replies()

    def _connect(self) -> None:
        """Open the connections between workers and servers that this process needs."""
        self.orders.ahead = self._agree_on_prefetch()
        self.layout = MessageLayout(self.orders.ahead, len(self.tally.counts))
        if self.process in self.server_ranks:
            number = self.server_ranks.index(self.process)
            self.server = LiveServer(
                number,
                self.shards[number],
                self.moved,
                self.recipe,
                self.layout,
                self.norms,
                self.living,
                self.replaceable,
            )
        own = self.server
        workers, servers = range(self.recipe.workers), range(len(self.server_ranks))
        wanted = [(f"{worker}-{server}", 1) for worker in self.hosted for server in servers]
        if own:
            wanted += [(f"{worker}-{own.number}", 0) for worker in workers]
            if self.one_gate and own.number == 0:
                wanted += [(f"follow-{server}", 0) for server in servers[1:]]
            elif self.one_gate:
                wanted.append((f"follow-{own.number}", 1))
        opened = iter(self.comm.open_pairs(wanted))
        self.pairs = list(islice(opened, len(self.hosted) * len(servers)))
        if own:
            own.pairs = dict(zip(workers, opened, strict=False))
            if self.one_gate and own.number == 0:
                own.followers = list(opened)
            elif self.one_gate:
                [own.leader] = opened
        pushed, replied = self.layout.push_message, self.layout.reply_message
        self.pushes = [pushed(each, self.values[each], self.carried_states) for each in servers]
        self.replies = [replied(self.values[each]) for each in servers]

    def _agree_on_prefetch(self) -> int:
        """Return the number of tickets that each worker holds beyond the one it computes.

        A process that has restarted takes that of the others, since the length of messages depends
        on it. Raises UsageError if the loader of a process prefetches more.
        """
        own = prefetch_limit(self.recipe) if self.hosted else 0
        ahead = max(*self.comm.gather_objects(own), self.orders.ahead)
        if ahead and self.one_gate:
            raise UsageError(
                f"a loader that prefetches {ahead} micro-batches holds tickets of other workers, "
                "and updates of strategy=backup would wait for them; write inputs=torchvision "
                "inputs.decoders=0, which does not prefetch"
            )
        if self.living:
            ahead = self.living.publish("ahead", ahead)
        if own > ahead:
            raise UsageError(
                f"process {self.process} has restarted where its loader prefetches {own} "
                f"micro-batches, and the other processes are set up for {ahead} at most; restart "
                "all with the same inputs.decoders on every machine",
                is_local=True,
            )
        return ahead

    def _end_order(self) -> None:
        """Gather the results of an order of pushes; copy the servers' values to all processes.

        Raises PeerLostError, DivergedError or PreemptedError if that ended the order early.
        """
        own = self.server
        said = (own.outcome(), own.recorded_order()) if own else (None, None)
        if self.living:
            orders = len(self.orders.epochs.get(self.epoch, []))
            members = None
            if own and own.number == 0:
                members = own.members() + [
                    (home, 0) for home in self.server_ranks if home >= self.recipe.workers
                ]
            self.living.form_group(f"{self.epoch}/{orders}", members)
        everyone = self._gather_by_process((os.getpid(), *said))
        self.pids = " ".join(str(pid) for pid, *_ in everyone.values())
        outcomes = [outcome for home in self.server_ranks if (outcome := everyone[home][1])]
        outcome = outcomes[0]
        rows = [everyone[home][2] for home in self.server_ranks]
        order = rows[: self.orders.servers]
        if any(map(len, order)):
            self.orders.append(self.epoch, order)
        self.row = outcome.row
        self.next_step = self.epoch * self.recipe.steps_per_epoch + int(outcome.row[0])
        for server, home in enumerate(self.server_ranks):
            values = self.shards[server].values if self.process == home else self.values[server]
            self._copy_from_server(values, server)
            for value, brought in zip(self.values[server], values, strict=True):
                value.copy_(brought)
        if own and own.number == 0:
            for part, moved in zip(self.carried_states, self.moved, strict=True):
                part.restore(moved.state(lambda _: None))
        whole_numbers = [each for each in self.model.buffers() if not each.is_floating_point()]
        if own:
            served = [each for each in self.served.buffers() if not each.is_floating_point()]
            for buffer, its in zip(whole_numbers, served, strict=True):
                buffer.copy_(its)
        self._copy_from_server(whole_numbers, 0)
        self._raise_early_end(outcomes)

    def _raise_early_end(self, outcomes: list[EpochOutcome]) -> None:
        """Raise the error that ended an order of pushes early, if any, by all servers' outcomes.

        A worker may be lost when only some servers have its push, and one that is not finite stops
        the updates there.
        """
        missing = sorted({worker for each in outcomes for worker in each.missing})
        if missing:
            raise PeerLostError(
                f"the workers {', '.join(map(str, missing))} are lost, and the others cannot "
                f"continue without them; {RERUN}"
            )
        steps = [each.nonfinite_step for each in outcomes if each.nonfinite_step is not None]
        if steps:
            step = self.epoch * self.recipe.steps_per_epoch + steps[0]
            raise divergence(
                step,
                f"nothing was saved since; {LOWER_LR}; strategy.order=PATH of the run folder's "
                f"{ORDERS_FILE} replays the run up to this step",
            )
        if outcomes[0].stop_requested:
            raise PreemptedError

    def _gather_by_process(self, value: T) -> dict[int, T]:
        """Gather a value from each remaining process; return the values by process number."""
        return dict(self.comm.gather_objects((self.process, value)))

    def _copy_from_server(self, tensors: list[Tensor], server: int) -> None:
        """Overwrite tensors on all processes by those of a server's process, bit by bit."""
        for tensor in tensors:
            # Summed as integers, since -0.0 + 0.0 would lose the sign.
            bits = flat_view(tensor).view(WHOLE.get(tensor.element_size(), torch.uint8))
            if self.process != self.server_ranks[server]:
                bits.zero_()
            all_reduce_(self.comm, bits)

    # --- The worker ----------------------------------------------------------------------------

    def _push(self, task: StepTask) -> None:
        """Send this worker's push (gradient, metric sums) to all servers, last to server 0.

        So a push which server 0 has received reaches the other servers too.
        """
        own = self.work.push()
        gradients = self.shards[0].begins[-1]
        norm = exact_norm(own[:gradients])
        doubt = (0 * (own[-NUM_FLAGS] + norm)).isnan()
        counted = torch.cat((torch.stack((doubt, norm, self.tally.loss)), self.tally.counts))
        own, counted = to_host((own, counted))
        numbers = torch.zeros_like(self.pushes[0].numbers)
        numbers[1], numbers[2], numbers[3:5] = self.life, self.stop_requested, counted[:2]
        numbers[5], numbers[6] = task.divisor, self.finished
        numbers[7:] = counted[2:]
        self.tally.clear()
        for server in reversed(range(len(self.pairs))):
            message = self.pushes[server]
            message.numbers.copy_(numbers)
            slices = self.shards[server].slices_of(own)
            if server == 0:
                slices.append(own[gradients:-NUM_FLAGS])
            torch.cat(slices, out=message.values)
            self.pairs[server].send(message.bytes)

    def _receive_replies(self) -> None:
        """Receive the replies of all servers to this worker: parameters, tickets, or the end.

        Server 0's reply comes first and implies those of the others.
        """
        first, *others = self.replies
        self.pairs[0].receive(first.bytes)
        kind, life, epoch, told, tickets, last, *numbers = first.numbers.tolist()
        if epoch != self.epoch:
            raise StaleRestartError(
                f"this process was restarted for epoch {self.epoch + 1}, and the others are in "
                f"epoch {int(epoch) + 1} by now; its next restart may be in time"
            )
        assert self.layout is not None
        self.row, self.life = numbers[-self.layout.row_length :], life
        self.stop_requested |= bool(told)
        if kind == ReplyType.END:
            self._close()
            return
        if kind == ReplyType.WAIT and self.paused:
            return
        if kind == ReplyType.GO and self.paused:
            self._send_to_other_servers(MessageType.RETURN)
            self.paused = False
        for pair, reply in zip(self.pairs[1:], others, strict=True):
            pair.receive(reply.bytes)
            self.stop_requested |= bool(reply.numbers[3])
        device = self.tally.loss.device
        for values, reply in zip(self.values, self.replies, strict=True):
            sent = to_device(reply.values, device)
            torch._foreach_copy_(values, sent.split([len(each) for each in values]))
        self.tickets += [int(ticket) for ticket in numbers[: int(tickets)]]
        self.last = bool(last)
        if kind == ReplyType.WAIT:
            self._send_to_other_servers(MessageType.PAUSE)
            self.paused = True

    def _send_to_other_servers(self, word: MessageType) -> None:
        """Send this worker's pause or return to the servers that do not follow server 0."""
        if self.one_gate:
            return
        for server in range(1, len(self.pairs)):
            self._send_word(server, word)

    def _send_word(self, server: int, word: MessageType) -> None:
        message = self.pushes[server]
        message.numbers.zero_()
        message.numbers[0], message.numbers[1] = word, self.life
        message.numbers[2] = self.stop_requested
        self.pairs[server].send(message.bytes)

    def _close(self) -> None:
        """Acknowledge the end of the order of pushes to all servers; receive their last replies."""
        for server in range(len(self.pairs)):
            self._send_word(server, MessageType.CLOSE)
        for pair, reply in zip(self.pairs[1:], self.replies[1:], strict=True):
            pair.receive(reply.bytes)
            while reply.numbers[0] != ReplyType.END:
                pair.receive(reply.bytes)
        self.over = True
