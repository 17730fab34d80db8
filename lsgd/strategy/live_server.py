"""A parameter server of real processes: it handles pushes as they come, and records their order.

A thread for each worker waits for its messages. What a message does happens at once and as a whole,
under one lock: the push is noted in the order, the update made, and the values of this moment are
on their way to whom the gate releases. Server 0 has the tickets, and so it alone ends an order.
Where one gate decides for all servers, the others do what server 0 tells them, push by push.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from threading import Condition, Thread, Timer

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from lsgd.comm import Living
from lsgd.comm.pair import Pair
from lsgd.errors import PeerLost
from lsgd.recipe import Recipe
from lsgd.strategy.desk import Desk, Kind, Reply
from lsgd.strategy.gate import Gate, Tickets
from lsgd.strategy.message import Message
from lsgd.strategy.shard import Shard
from lsgd.workloads import Part

NO_MORE = -(2**31)
"""What followers are told at the end of an order."""
LATEST = 64
"""Pushes of this staleness or more are counted together in rows."""


class Word(IntEnum):
    """What a worker says to a server."""

    PUSH = 0
    """Here is a gradient."""
    PAUSE = 1
    """Server 0 has no ticket for me."""
    RETURN = 2
    """Server 0 has a ticket for me again."""
    CLOSE = 3
    """Server 0 says that the order has ended."""


@dataclass(frozen=True)
class Layout:
    """The numbers of messages, in their order, for a loader that holds so many tickets ahead and a
    workload with so many kinds of counts."""

    ahead: int
    counts: int

    @property
    def push(self) -> int:
        """Word, life; whether this process was told to leave; whether loss or gradient are not
        finite, the norm and the weight of the push; whether the loader has come to its end; loss
        and counts."""
        return 8 + self.counts

    @property
    def reply(self) -> int:
        """Kind, life, epoch; whether the process was told to leave; how many tickets and whether
        they are the last; the tickets; the row."""
        return 6 + 1 + self.ahead + self.row

    @property
    def row(self) -> int:
        """What has come of an epoch: updates, loss, counts, the norm of the last gradient, dropped
        pushes, the sum of staleness, and how many pushes had each staleness."""
        return 5 + self.counts + LATEST + 1

    def push_message(self, server: int, values: Sequence[Tensor], parts: Sequence[Part]) -> Message:
        """An empty push to the server with these values; behind the gradient server 0 gets what
        parts have seen."""
        seen = sum(part.seen.numel() for part in parts) if server == 0 else 0
        size = sum(value.numel() for value in values)
        return Message(self.push, size + seen, values[0].dtype)

    def reply_message(self, values: Sequence[Tensor]) -> Message:
        """An empty reply of the server with these values."""
        return Message(self.reply, sum(value.numel() for value in values), values[0].dtype)


@dataclass(frozen=True)
class Outcome:
    """How an order has ended, as server 0 knows it and tells all."""

    row: list[float]
    """As Layout.row says."""
    told: bool
    """Whether a process was told to leave."""
    bad: int | None
    """The step of the epoch whose loss or gradient was not finite."""
    missing: list[int]
    """The workers that are lost, if the others cannot go on without them."""


@dataclass
class _Push:
    """A push that was neither applied nor dropped yet."""

    read: int
    """The version that it is computed with."""
    message: Message


class LiveServer:
    """One server, on the process that is its home."""

    def __init__(
        self,
        number: int,
        shard: Shard,
        parts: tuple[Part, ...],
        recipe: Recipe,
        layout: Layout,
        norms: list[Tensor],
        comm: Living | None,
    ) -> None:
        self.number, self.shard, self.parts, self.recipe = number, shard, parts, recipe
        self.layout = layout
        self.comm = comm
        """Where workers that were lost come back, if they can."""
        self.lives = [0] * recipe.workers
        """The life of each worker's process."""
        self.norms = norms
        """Where the shard looks for the norm by which it clips."""
        self.one_gate = recipe.strategy.name == "backup"
        self.follows = self.one_gate and number > 0
        self.sizes = [value.numel() for value in shard.values]
        self.pairs: dict[int, Pair] = {}
        """By worker; a lost one has none."""
        self.followers: list[Pair] = []
        """Of server 0, to those that follow it."""
        self.leader: Pair | None = None
        """Of a follower, to server 0."""
        self.leaving: dict[int, tuple[Message, Callable[[], None]]] = {}
        """By worker, the last reply, and what waits until it has left."""
        self.passed_on = 0
        """How much of the order the followers know."""
        self.lock = Condition()
        self.threads: list[Thread] = []
        self.timer: Timer | None = None

    def begin(
        self, gate: Gate, tickets: Tickets | None, version: int, row: Sequence[float], epoch: int
    ) -> None:
        """Begin an order of this epoch: all workers read the values as they are. `row` has what the
        orders before it have come to."""
        for thread in self.threads:
            thread.join()  # each has yet to hear that its worker knows of the last end
        self.desk = Desk(gate, self.recipe.workers, tickets, follows=self.follows)
        self.epoch = epoch
        self.version, self.passed_on = version, 0
        self.read = [version] * self.recipe.workers
        """The version that each worker has read last."""
        self.pushes: defaultdict[int, deque[_Push]] = defaultdict(deque)
        """By worker, in the order in which they came."""
        self.row = list(row)
        self.told = False
        self.bad: int | None = None
        self.missing: list[int] = []
        with self.lock:
            self._say(self.desk.begin(self.pairs))
            self.threads = []
            for each in self.pairs.items():
                self._listen(*each)
            if self.leader:
                self.threads.append(Thread(target=self._follow, args=(self.leader,), daemon=True))
                self.threads[-1].start()

    def tell(self) -> None:
        """This process was told to leave: let the order end as soon as it can."""
        with self.lock:
            self._tell()

    def ended(self, seconds: float) -> bool:
        """Wait for the end of the order, at most so long; returns whether it has ended."""
        with self.lock:
            return self.lock.wait_for(lambda: self.desk.over, seconds)

    def members(self) -> list[tuple[int, int]]:
        """The workers that know of the end, each with the life of its process; one that has come
        back since waits for the next beginning."""
        with self.lock:
            left = sorted(self.pairs.keys() - self.desk.lost)
            return [(worker, self.lives[worker]) for worker in left]

    def outcome(self) -> Outcome:
        """How the order has ended, for all processes, of server 0."""
        return Outcome(self.row, self.told, self.bad, self.missing)

    def recorded(self) -> NDArray[np.int16]:
        """The order."""
        return np.array(self.desk.order, np.int16)

    def _serve(self, worker: int, pair: Pair) -> None:
        """Handle what a worker sends, until the order has ended or the worker is lost."""
        message = self.layout.push_message(self.number, self.shard.values, self.parts)
        try:
            while True:
                pair.receive(message.bytes)
                with self.lock:
                    if not self._handle(worker, message):
                        return
        except PeerLost:
            with self.lock:
                self._lose(worker, pair)

    def _follow(self, leader: Pair) -> None:
        """Do what server 0 says, a push when it has come."""
        event = torch.zeros(1, dtype=torch.int64)
        with suppress(PeerLost):
            while True:
                leader.receive(event)
                with self.lock:
                    if int(event) == NO_MORE:
                        self._say(self.desk.no_more())
                        return
                    self._do(int(event))

    def _do(self, event: int) -> None:
        if event not in range(self.recipe.workers):
            self._say(self.desk.follow(event))
            return
        # A worker sends its push to server 0 last, so it has come or will.
        self.lock.wait_for(lambda: self.pushes[event] or event in self.desk.lost)
        if not self.pushes[event]:
            self.missing.append(event)
            return
        effects, replies = self.desk.push(event)
        self._make(event, effects.applied, dropped=effects.dropped)
        self._say(replies)

    def _handle(self, worker: int, message: Message) -> bool:
        """Do what a message says; returns whether another will come."""
        word, life, told = (int(number) for number in message.numbers[:3])
        if told:
            self._tell()
        if message.numbers[6]:
            self.desk.finished.add(worker)
        match Word(word):
            case Word.PUSH:
                # One that has to wait for others is kept while the next message comes.
                kept = message.copy() if self.one_gate else message
                self.pushes[worker].append(_Push(self.read[worker], kept))
                if self.follows:
                    self.lock.notify_all()
                    return True
                effects, replies = self.desk.push(worker)
                self._make(worker, effects.applied, dropped=effects.dropped)
                if self.bad is not None and self.number == 0:
                    replies += self.desk.stop()
            case Word.PAUSE:
                replies = self.desk.pause(worker)
            case Word.RETURN:
                replies = self.desk.come_back(worker, life)
            case Word.CLOSE:
                self._say(self.desk.close(worker))
                return False
        self._say(replies)
        return True

    def _make(self, worker: int, applied: tuple[int, ...], *, dropped: bool) -> None:
        """Make the update of these pushes, if there are any."""
        if dropped:
            self.pushes[worker].popleft()
            self.row[-LATEST - 3] += 1
        if not applied:
            return
        pushes = [self.pushes[each].popleft() for each in applied]
        if self.bad is None and any(push.message.numbers[3] for push in pushes):
            self.bad = self.version
        if self.bad is None:
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
        device = self.shard.values[0].device
        first, *others = [push.message.values.to(device) for push in pushes]
        gradient, seen = first[: sum(self.sizes)], first[sum(self.sizes) :]
        for other in others:
            first += other
        weight = sum(int(push.message.numbers[5]) for push in pushes)
        if self.one_gate and weight != self.recipe.batch_size:
            gradient *= self.recipe.batch_size / weight
        if self.one_gate:
            norm = torch.linalg.vector_norm(gradient)
        else:
            norm = pushes[0].message.numbers[4].to(first)
        self.norms[0] = norm
        self.row[-LATEST - 4] = norm.item()
        self.shard.apply(gradient.split(self.sizes), self._lr(pushes))
        sizes = [part.seen.numel() for part in self.parts] if self.number == 0 else []
        for part, each in zip(self.parts, seen.split(sizes) if sizes else (), strict=False):
            part.seen.copy_(each.view_as(part.seen))
            part.end_step(len(pushes))

    def _lr(self, pushes: list[_Push]) -> float:
        # After losses another server may have more pushes than server 0.
        steps = self.recipe.steps_per_epoch
        step = self.epoch * steps + min(self.version, steps - 1)
        lr = self.recipe.lr(step)
        if self.recipe.strategy.pushes_ways:
            lr = self.recipe.strategy.outer_lr
        if not self.recipe.strategy.staleness_aware:
            return lr
        return lr / max(1, self.version - pushes[0].read)

    def _say(self, replies: list[Reply]) -> None:
        """Send replies, all with the values of this moment, and notice the end."""
        for reply in replies:
            if reply.kind is Kind.GO:
                self.read[reply.worker] = self.version
            if pair := self.pairs.get(reply.worker):
                message = self._written(reply)
                with suppress(PeerLost):  # which the thread that listens to it notices too
                    if reply.worker in self.leaving:
                        self.leaving.pop(reply.worker)[1]()
                    self.leaving[reply.worker] = message, pair.start_send(message.bytes)
        self._pass_on()
        self._watch()
        if self.desk.over:
            self.lock.notify_all()

    def _written(self, reply: Reply) -> Message:
        message = self.layout.reply_message(self.shard.values)
        life, count = self.desk.lives[reply.worker], len(reply.tickets)
        head = [reply.kind, life, self.epoch, self.told, count, reply.last]
        tickets = reply.tickets + [0] * (1 + self.layout.ahead - count)
        message.numbers.copy_(torch.tensor([*head, *tickets, *self.row], dtype=torch.float64))
        begin = 0
        for value in self.shard.values:
            message.values[begin : begin + value.numel()].copy_(value)
            begin += value.numel()
        return message

    def _pass_on(self) -> None:
        """Tell the followers what was added to the order, and its end."""
        events = (self.desk.order + [NO_MORE] * self.desk.over)[self.passed_on :]
        self.passed_on += len(events)
        for follower in self.followers:
            for event in events:
                follower.send(torch.tensor([event]))

    def _tell(self) -> None:
        self.told = True
        if self.number == 0 and not self.desk.stopped:
            self._say(self.desk.stop())

    def _lose(self, worker: int, pair: Pair) -> None:
        if self.pairs.get(worker) is not pair:
            return  # another has taken its place
        del self.pairs[worker]
        self.leaving.pop(worker, None)
        if self.comm:
            Thread(target=self._look_out, args=(worker, self.comm), daemon=True).start()
        if self.desk.over:
            self.desk.lost.add(worker)
        else:
            self._say(self.desk.lose(worker))
            # Process 0 keeps the run folder; and with local steps a worker has a momentum.
            if worker == 0 or self.recipe.strategy.pushes_ways:
                self._give_up()
            self.lock.notify_all()

    def _look_out(self, worker: int, comm: Living) -> None:
        """Wait for the return of a worker, and take it in."""
        name = f"{worker}-{self.number}"
        with suppress(dist.DistError, RuntimeError):  # at the end of the job
            while True:
                self.lives[worker] = life = comm.wait_for_life(worker, self.lives[worker])
                try:
                    pair = comm.open_pair(f"{name}/{life}", 0)
                except PeerLost:
                    continue  # it was lost again before it was there
                break
            with self.lock:
                self.pairs[worker] = pair
                # What has ended begins again with all that are there.
                if not self.desk.over:
                    self._listen(worker, pair)
                    if self.number:
                        self.desk.lost.discard(worker)
                    else:
                        self._say(self.desk.come_back(worker))

    def _listen(self, worker: int, pair: Pair) -> None:
        thread = Thread(target=self._serve, args=(worker, pair), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        """Give up if nobody can use the tickets that are left, and no lost worker comes back."""
        if self.timer and not self.desk.stuck:
            self.timer.cancel()
            self.timer = None
        if self.desk.stuck and not self.timer:
            self.timer = Timer(self.recipe.comm.timeout, self._give_up)
            self.timer.daemon = True
            self.timer.start()

    def _give_up(self) -> None:
        with self.lock:
            if not self.desk.over:
                self.missing = sorted(self.desk.lost)
                self._say(self.desk.stop())
