"""Parameter server in real time: it handles pushes in the order of arrival and records that order.

A thread for each worker waits for its messages. Each message is handled atomically, under one lock:
the push is added to the order, the update is made, and the new values are sent to the workers that
the gate releases. Server 0 issues the tickets, so only server 0 ends an order. Where one gate
decides for all servers, the others follow server 0, push by push.
"""

import os
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from threading import Condition, Thread, Timer, main_thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from lsgd.comm import ElasticComm
from lsgd.comm.pair import ProcessPair
from lsgd.errors import PeerLostError
from lsgd.job.device import to_device, to_host
from lsgd.recipe import Recipe
from lsgd.rules.exact_norm import exact_norm
from lsgd.strategy.gate import AdmissionGate, Tickets
from lsgd.strategy.push_scheduler import PushScheduler, ReplyType, ServerReply
from lsgd.strategy.shard import Shard, server_lr
from lsgd.workloads import CarriedState

NO_MORE = -(2**31)
"""Event by which server 0 signals the end of an order to its followers."""
LATEST = 64
"""Staleness from which on the metrics rows count all pushes in one bin."""
STOP_GRACE_SECONDS = 20.0
"""Seconds that a worker has to push after a stop request, and again to acknowledge the end.

A suspended worker must not keep the others from saving before their launcher kills them.
"""


class Message:
    """Message between a worker and a server: header and parameter values in one byte tensor."""

    def __init__(self, numbers: int, values: int, dtype: torch.dtype) -> None:
        self.bytes = torch.zeros(8 * numbers + values * dtype.itemsize, dtype=torch.uint8)
        self.numbers: Tensor = self.bytes[: 8 * numbers].view(torch.float64)
        """Header in float64, which represents integers and float32 values exactly."""
        self.values: Tensor = self.bytes[8 * numbers :].view(dtype)

    def copy(self) -> "Message":
        """Return a copy of the message with its own memory."""
        other = Message(len(self.numbers), len(self.values), self.values.dtype)
        other.bytes.copy_(self.bytes)
        return other


class MessageType(IntEnum):
    """Type of a message from a worker to a server."""

    PUSH = 0
    """Gradient for an update."""
    PAUSE = 1
    """Notice that server 0 has no ticket for this worker."""
    RETURN = 2
    """Notice that server 0 has a ticket for this worker again."""
    CLOSE = 3
    """Notice that server 0 has ended the order."""


@dataclass(frozen=True)
class MessageLayout:
    """Layout of the header in messages between workers and parameter servers.

    `ahead` is the number of tickets that a loader prefetches, `counts` that of the workload's
    counts.
    """

    ahead: int
    counts: int

    @property
    def push_header_length(self) -> int:
        """Number of values in the header of a worker's message to a server.

        Its numbers: message type, worker's life (the number of its returns that its last reply from
        server 0 had), stop requested, loss or gradient not finite, norm and weight of the push,
        loader finished, loss, counts.
        """
        return 8 + self.counts

    @property
    def reply_header_length(self) -> int:
        """Number of values in the header of a server's reply to a worker.

        Its numbers: reply type, worker's life, epoch, stop requested, number of tickets,
        whether they are the last, the tickets, the row.
        """
        return 6 + 1 + self.ahead + self.row_length

    @property
    def row_length(self) -> int:
        """Number of values in a reply's header that are metric sums of an epoch.

        Its numbers: updates, loss, counts, norm of the last gradient, dropped pushes, sum of
        staleness, number of pushes by staleness.
        """
        return 5 + self.counts + LATEST + 1

    def push_message(
        self, server: int, values: Sequence[Tensor], parts: Sequence[CarriedState]
    ) -> Message:
        """Return an empty message for pushes to a server that has these parameter slices.

        For server 0 it has room, behind the gradient, for the changes of the carried states.
        """
        seen = sum(part.pending_update.numel() for part in parts) if server == 0 else 0
        size = sum(value.numel() for value in values)
        return Message(self.push_header_length, size + seen, values[0].dtype)

    def reply_message(self, values: Sequence[Tensor]) -> Message:
        """Return an empty message for replies of a server that has these parameter slices."""
        return Message(
            self.reply_header_length, sum(value.numel() for value in values), values[0].dtype
        )


@dataclass(frozen=True)
class EpochOutcome:
    """Outcome of an order of pushes, which each server sends to all processes."""

    row: list[float]
    """Sums of the epoch, in the order of MessageLayout.row_length."""
    stop_requested: bool
    """Whether a process received a stop request."""
    nonfinite_step: int | None
    """Step of the epoch whose loss or gradient was not finite; None if all were finite."""
    missing: list[int]
    """Lost workers without which the others cannot continue."""


@dataclass
class _Push:
    """Received push (gradient) that the server has neither applied nor dropped yet."""

    read: int
    """Version of the parameters that the gradient was computed with."""
    life: int
    """Number of the worker's returns to the order before it computed the gradient."""
    message: Message


class LiveServer:
    """Parameter server in threads of this process, which handles pushes as they arrive."""

    def __init__(
        self,
        number: int,
        shard: Shard,
        parts: tuple[CarriedState, ...],
        recipe: Recipe,
        layout: MessageLayout,
        norms: list[Tensor],
        comm: ElasticComm | None,
        replaceable: frozenset[int],
    ) -> None:
        self.number, self.shard, self.parts, self.recipe = number, shard, parts, recipe
        self.layout = layout
        self.comm = comm
        """Communicator at which lost workers reconnect; None if they cannot."""
        self.replaceable = replaceable
        """Workers that may be lost without ending the job."""
        self.lives = [0] * recipe.workers
        """Restart count of each worker's process."""
        self.norms = norms
        """One-element list from which the shard reads the norm for clipping."""
        self.one_gate = recipe.strategy.name == "backup"
        self.follows = self.one_gate and number > 0
        self.sizes = [value.numel() for value in shard.values]
        self.pairs: dict[int, ProcessPair] = {}
        """Connections by worker, without those of lost workers."""
        self.followers: list[ProcessPair] = []
        """Connections of server 0 to the servers that follow it."""
        self.leader: ProcessPair | None = None
        """Connection of a follower to server 0."""
        self.pending_replies: defaultdict[int, list[tuple[Message, Callable[[], None]]]] = (
            defaultdict(list)
        )
        """Replies to each worker since its last push, each with a function that awaits its sending.

        A suspended worker receives none, and no other process waits for it.
        """
        self.passed_on = 0
        """Number of events of the order that were sent to the followers."""
        self.lock = Condition()
        self.threads: list[Thread] = []
        self.timer: Timer | None = None

    def begin(
        self,
        gate: AdmissionGate,
        tickets: Tickets | None,
        version: int,
        row: Sequence[float],
        epoch: int,
    ) -> None:
        """Start an order of pushes: send all workers the parameters and handle their messages.

        `row` has the sums of the epoch's earlier orders.
        """
        for thread in self.threads:
            thread.join()  # each ends once its worker has acknowledged the last end
        self.desk = PushScheduler(gate, self.recipe.workers, tickets, follows=self.follows)
        self.epoch = epoch
        self.version, self.passed_on = version, 0
        self.read = [version] * self.recipe.workers
        """Version that each worker has received last."""
        self.pushes: defaultdict[int, deque[_Push]] = defaultdict(deque)
        """Pushes of each worker in the order of their arrival; `_pending` drops outdated ones."""
        self.unsent: dict[int, Message] = {}
        """Follower's reply to each worker that server 0 has let rejoin before its connection here.

        A restarted worker connects to server 0 last, but each server notes it in its own thread.
        """
        self.row = list(row)
        self.stop_requested = False
        self.nonfinite_step: int | None = None
        self.missing: list[int] = []
        with self.lock:
            self._send_replies(self.desk.begin(self.pairs))
            self.threads = []
            for each in self.pairs.items():
                self._listen(*each)
            if self.leader:
                self.threads.append(_start_daemon(self._follow, self.leader))

    def request_stop(self) -> None:
        """Handle a stop request to this process: end the order as soon as possible."""
        with self.lock:
            self._handle_stop_request()

    def wait_until_ended(self, seconds: float) -> bool:
        """Return whether the order of pushes has ended, after waiting at most `seconds` for it."""
        with self.lock:
            return self.lock.wait_for(lambda: self.desk.over, seconds)

    def members(self) -> list[tuple[int, int]]:
        """Return the workers that have acknowledged the end of the pushes, with restart counts.

        Waits until each worker has acknowledged it or is lost. A worker that reconnected since is
        left out: it joins the next order.
        """
        with self.lock:
            self.lock.wait_for(lambda: not self._present() - self.desk.closed)
            return [(worker, self.lives[worker]) for worker in sorted(self._present())]

    def _present(self) -> set[int]:
        return self.pairs.keys() - self.desk.lost

    def outcome(self) -> EpochOutcome:
        """Return how the epoch has ended on this server, with its sums, for all processes."""
        return EpochOutcome(self.row, self.stop_requested, self.nonfinite_step, self.missing)

    def recorded_order(self) -> NDArray[np.int16]:
        """Return the order in which this server handled pushes, leaves and returns of workers."""
        return np.array(self.desk.order, np.int16)

    def _serve(self, worker: int, pair: ProcessPair) -> None:
        """Handle a worker's messages until the order of pushes has ended or the worker is lost."""
        message = self.layout.push_message(self.number, self.shard.values, self.parts)
        try:
            while True:
                pair.receive(message.bytes)
                with self.lock:
                    if self.pairs.get(worker) is not pair:
                        return  # given up on, it has pushed after all
                    if not self._handle(worker, message):
                        return
        except PeerLostError:
            with self.lock:
                self._lose(worker, pair)

    def _follow(self, leader: ProcessPair) -> None:
        """Repeat on this server the events that server 0 sends, each push once it is here."""
        event = torch.zeros(1, dtype=torch.int64)
        with suppress(PeerLostError):
            while True:
                leader.receive(event)
                with self.lock:
                    if int(event) == NO_MORE:
                        self._send_replies(self.desk.no_more())
                        return
                    self._do(int(event))

    def _do(self, event: int) -> None:
        """Repeat one event of server 0 on this server: a worker's push, leaving or return."""
        if event not in range(self.recipe.workers):
            self.unsent.pop(-1 - event, None)  # of a worker that was lost again
            replies = self.desk.follow(event)
            for reply in replies:
                if reply.worker not in self.pairs:
                    self.unsent[reply.worker] = self._written(reply, self._values())
            self._send_replies(replies)
            return
        # A worker sends its push to server 0 last, so it has arrived here or will.
        self.lock.wait_for(lambda: self._pending(event) or event in self.desk.lost)
        if not self._pending(event):
            self.missing.append(event)
            return
        effects, replies = self.desk.push(event)
        self._make(event, effects.applied, dropped=effects.dropped)
        self._send_replies(replies)

    def _handle(self, worker: int, message: Message) -> bool:
        """Handle one message of a worker; return whether another message will follow."""
        word, life, told = (int(number) for number in message.numbers[:3])
        if told:
            self._handle_stop_request()
        if message.numbers[6]:
            self.desk.finish(worker)
        match MessageType(word):
            case MessageType.PUSH:
                # The push is computed with the last reply, so all replies have been received.
                for _, has_left in self.pending_replies.pop(worker, ()):
                    has_left()
                # A push that waits for others must not be overwritten by the next message.
                kept = message.copy() if self.one_gate else message
                self.pushes[worker].append(_Push(self.read[worker], life, kept))
                if self.follows:
                    self.lock.notify_all()
                    return True
                effects, replies = self.desk.push(worker)
                self._make(worker, effects.applied, dropped=effects.dropped)
                if self.nonfinite_step is not None and self.number == 0:
                    replies += self.desk.stop()
            case MessageType.PAUSE:
                replies = self.desk.pause(worker)
            case MessageType.RETURN:
                replies = self.desk.rejoin(worker, life)
            case MessageType.CLOSE:
                self._send_replies(self.desk.close(worker))
                return False
        self._send_replies(replies)
        return True

    def _pending(self, worker: int) -> deque[_Push]:
        """Return a worker's pending pushes, without those of a life before its last return.

        Such a push waited for others, or arrived here, when the worker was lost, and its batch is
        issued again.
        """
        pushes = self.pushes[worker]
        while pushes and pushes[0].life < self.desk.lives[worker]:
            pushes.popleft()
        return pushes

    def _make(self, worker: int, applied: tuple[int, ...], *, dropped: bool) -> None:
        """Make an update by these workers' pushes, or drop this worker's push, and count them."""
        if dropped:
            self._pending(worker).popleft()
            self.row[-LATEST - 3] += 1
        if not applied:
            return
        pushes = [self._pending(each).popleft() for each in applied]
        if self.nonfinite_step is None and any(push.message.numbers[3] for push in pushes):
            self.nonfinite_step = self.version
        if self.nonfinite_step is None:
            self._update(pushes)
        for push in pushes:
            late = self.version - push.read
            self.row[-LATEST - 2] += late
            self.row[-LATEST - 1 + min(late, LATEST)] += 1
            counts = push.message.numbers[7:].tolist()
            self.row[1 : 1 + len(counts)] = [
                sum(each) for each in zip(self.row[1:], counts, strict=False)
            ]
        self.version += 1
        self.row[0] = self.version

    def _update(self, pushes: list[_Push]) -> None:
        """Update the parameters and carried states once by the sum of these pushes."""
        device = self.shard.values[0].device
        first, *others = [to_device(push.message.values, device) for push in pushes]
        gradient, seen = first[: sum(self.sizes)], first[sum(self.sizes) :]
        for other in others:
            first += other
        weight = sum(int(push.message.numbers[5]) for push in pushes)
        if self.one_gate and weight != self.recipe.batch_size:
            gradient *= self.recipe.batch_size / weight
        if self.one_gate:
            norm = exact_norm(gradient)
            self.row[-LATEST - 4] = norm.item()
        else:
            self.row[-LATEST - 4] = float(pushes[0].message.numbers[4])
            norm = first.new_full((), self.row[-LATEST - 4])
        self.norms[0] = norm
        lr = server_lr(self.recipe, self.epoch, self.version, pushes[0].read)
        self.shard.apply(gradient.split(self.sizes), lr)
        sizes = [part.pending_update.numel() for part in self.parts] if self.number == 0 else []
        for part, each in zip(self.parts, seen.split(sizes) if sizes else (), strict=False):
            part.pending_update.copy_(each.view_as(part.pending_update))
            part.end_step(len(pushes))

    def _send_replies(self, replies: list[ServerReply]) -> None:
        """Send replies with the current parameters; notify threads that await the order's end."""
        values = self._values() if replies else []
        for reply in replies:
            if reply.kind is ReplyType.GO:
                self.read[reply.worker] = self.version
            if pair := self.pairs.get(reply.worker):
                self._start_send(reply.worker, pair, self._written(reply, values))
        self._pass_on()
        self._watch()
        if self.desk.over:
            self.lock.notify_all()

    def _start_send(self, worker: int, pair: ProcessPair, message: Message) -> None:
        with suppress(PeerLostError):  # the thread that serves this worker notices it too
            self.pending_replies[worker].append((message, pair.start_send(message.bytes)))

    def _values(self) -> Sequence[Tensor]:
        """Return the current values of this server's parameter slices in host memory."""
        if self.shard.values[0].device.type == "cpu":
            return self.shard.values
        (flat,) = to_host([torch.cat(self.shard.values)])
        values: Sequence[Tensor] = flat.split(self.sizes)
        return values

    def _written(self, reply: ServerReply, values: Sequence[Tensor]) -> Message:
        message = self.layout.reply_message(self.shard.values)
        life, count = self.desk.lives[reply.worker], len(reply.tickets)
        head = [reply.kind, life, self.epoch, self.stop_requested, count, reply.last]
        tickets = reply.tickets + [0] * (1 + self.layout.ahead - count)
        message.numbers.copy_(torch.tensor([*head, *tickets, *self.row], dtype=torch.float64))
        torch.cat(list(values), out=message.values)
        return message

    def _pass_on(self) -> None:
        """Send the new events of the order of pushes, and its end, to the following servers."""
        events = (self.desk.order + [NO_MORE] * self.desk.over)[self.passed_on :]
        self.passed_on += len(events)
        for follower in self.followers:
            for event in events:
                follower.send(torch.tensor([event]))

    def _handle_stop_request(self) -> None:
        if not self.stop_requested:
            # Other servers end later: server 0 ends the order first, once no push is pending.
            _start_timer(
                STOP_GRACE_SECONDS if self.number == 0 else 2 * STOP_GRACE_SECONDS,
                self._leave_behind,
            )
        self.stop_requested = True
        if self.number == 0 and not self.desk.is_stopping:
            self._send_replies(self.desk.stop())

    def _leave_behind(self) -> None:
        """Disconnect workers that do not push or acknowledge the end soon after a stop request."""
        with self.lock:
            computing = self.number == 0 and not self.desk.over
            late = self.desk.computing if computing else self._present() - self.desk.closed
            for worker in sorted(late & self.replaceable):
                self._lose(worker, self.pairs[worker])
        if computing:
            _start_timer(STOP_GRACE_SECONDS, self._leave_behind)

    def _lose(self, worker: int, pair: ProcessPair) -> None:
        """Disconnect a lost worker, and wait in a thread for its restart."""
        if self.pairs.get(worker) is not pair:
            return  # a restarted process has replaced it
        del self.pairs[worker]
        self.pending_replies.pop(worker, None)
        if self.comm:
            _start_daemon(self._await_restart, worker, self.comm)
        if self.desk.over:
            self.desk.lost.add(worker)
            self.lock.notify_all()
        else:
            self._send_replies(self.desk.lose(worker))
            # Without this worker, further work of the others would not be saved.
            if worker not in self.replaceable:
                self._give_up()
            self.lock.notify_all()

    def _await_restart(self, worker: int, comm: ElasticComm) -> None:
        """Wait until a lost worker's process restarts, and reconnect to it."""
        name = f"{worker}-{self.number}"
        with suppress(dist.DistError, RuntimeError):  # at the end of the job
            while True:
                self.lives[worker] = life = comm.wait_for_restart(worker, self.lives[worker])
                try:
                    pair = comm.open_pair(f"{name}/{life}", 0)
                except PeerLostError:
                    continue  # it was lost again before it had connected
                break
            with self.lock:
                self.pairs[worker] = pair
                # After the end, the next order starts with all connected workers anyway.
                if not self.desk.over:
                    self._listen(worker, pair)
                    if self.number:
                        self.desk.lost.discard(worker)
                        if message := self.unsent.pop(worker, None):
                            self._start_send(worker, pair, message)
                    else:
                        self._send_replies(self.desk.rejoin(worker))

    def _listen(self, worker: int, pair: ProcessPair) -> None:
        self.threads.append(_start_daemon(self._serve, worker, pair))

    def _watch(self) -> None:
        """End the order after a timeout in which only lost workers could compute what is left."""
        if self.timer and not self.desk.is_stuck:
            self.timer.cancel()
            self.timer = None
        if self.desk.is_stuck and not self.timer:
            self.timer = _start_timer(self.recipe.comm.timeout, self._give_up)

    def _give_up(self) -> None:
        """End the order of pushes, and report all lost workers as missing."""
        with self.lock:
            if not self.desk.over:
                self.missing = sorted(self.desk.lost)
                self._send_replies(self.desk.stop())


def _start_daemon(work: Callable[..., None], *arguments: Any) -> Thread:
    """Call a function in a daemon thread; an exception ends the process, as others wait for it."""

    def run() -> None:
        try:
            work(*arguments)
        except Exception:
            if main_thread().is_alive():  # at interpreter exit no thread may start or use torch
                traceback.print_exc()
                os._exit(1)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def _start_timer(seconds: float, what: Callable[[], None]) -> Timer:
    """Call a function after a delay, in a daemon thread; the returned timer can be cancelled."""
    timer = Timer(seconds, what)
    timer.daemon = True
    timer.start()
    return timer
