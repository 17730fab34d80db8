"""Order in which servers handle pushes, which with the recipe determines an asynchronous run.

The time of a push never depends on its values. So the order is data of its own, one small integer
per push and server, which a virtual clock draws, real processes record or a file contains. This
module computes what each push of an epoch reads and which update it is part of, before any push is
computed.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import UsageError
from lsgd.strategy.gate import AdmissionGate, Tickets

PushOrder = list[NDArray[np.int16]]
"""Events that each server handled, in turn: one array of integers for each server.

An event is the worker whose push is handled; -1 - worker if a worker leaves; the number of workers
plus worker if it rejoins; twice the number of workers plus worker if its loader has finished, after
which server 0 issues it no tickets until it rejoins.
"""


@dataclass
class ScriptedPush:
    """Push (gradient) of a worker in an epoch's script, with the versions it reads and updates.

    A version is the number of updates that a server's parameters have had in this epoch.
    """

    worker: int
    ticket: int
    """Batch of the epoch of which the gradient is computed."""
    read: list[int]
    """Version of each server's parameters with which the gradient is computed."""
    applied: list[int]
    """Version of each server's parameters to which the gradient is applied.

    Its staleness is `applied` minus `read`. It is -1 at servers that a lost worker's push never
    reached.
    """


@dataclass(frozen=True)
class EpochScript:
    """Script of an epoch: its pushes (gradients), and the parameter versions they read and update.

    Where one gate decides for all servers, they count as one server here.
    """

    pushes: list[ScriptedPush]
    """Applied pushes, each of which reads only updates of pushes before it."""
    dropped: list[int]
    """Number of pushes dropped before each update of server 0, since its previous update."""

    @cached_property
    def updates(self) -> list[list[list[int]]]:
        """Numbers of the pushes that make each update together, by server and version."""
        servers = len(self.pushes[0].applied)
        updates: list[list[list[int]]] = [[] for _ in range(servers)]
        for server, made in enumerate(updates):
            count = 1 + max(push.applied[server] for push in self.pushes)
            made += [[] for _ in range(count)]
            for number, push in enumerate(self.pushes):
                if push.applied[server] >= 0:
                    made[push.applied[server]].append(number)
        return updates

    @cached_property
    def steps(self) -> list[list[int]]:
        """Numbers of the pushes that are computed in each training step of the epoch.

        They are the pushes of an update or, with several gates, one push to server 0 and those
        before it that never reached server 0.
        """
        together = self.updates[0]
        if len(self.updates) == 1:
            return together
        steps: list[list[int]] = [[]]
        for number, push in enumerate(self.pushes):
            steps[-1].append(number)
            if push.applied[0] >= 0:
                steps.append([])
        last = steps.pop()
        steps[-1] += last
        return steps

    @cached_property
    def last_read(self) -> dict[tuple[int, int], int]:
        """Number of the last push that reads a version of the parameters, by (server, version)."""
        return {
            (server, version): number
            for number, push in enumerate(self.pushes)
            for server, version in enumerate(push.read)
        }


def play_orders(
    orders: Sequence[PushOrder],
    make_gates: Callable[[int], Sequence[AdmissionGate]],
    tickets: Tickets,
    workers: int,
    aheads: Sequence[int] | None = None,
) -> EpochScript:
    """Replay an epoch's recorded orders of pushes through the gates; return the epoch's script.

    An epoch that was interrupted has a further order: all workers read again, and the unused
    tickets are issued again; `make_gates` takes their number. `aheads` has the number of prefetched
    tickets with which each order was recorded, by default that of `tickets`. Afterwards `tickets`
    has those that the last order left. Raises UsageError if the servers cannot handle the pushes in
    these orders, which then are of another run.
    """
    player, ahead = _Player(make_gates, tickets, workers), tickets.ahead
    recorded = zip(orders, aheads or [ahead] * len(orders), strict=True)
    is_played = all(player.play(*each) for each in recorded)
    tickets.ahead = ahead
    if not is_played:
        raise UsageError(
            f"this event order belongs to another run: with {workers} workers and "
            f"{len(player.gates)} servers it stops after {len(player.pushes)} pushes; write the "
            "recipe that recorded it"
        )
    return EpochScript(player.pushes, player.dropped[:-1])


@dataclass
class _Worker:
    """State of a worker in a replayed order of pushes, from its start or return to its end."""

    read: dict[int, int] = field(default_factory=dict)
    """Versions received for its next push, by server."""
    push: ScriptedPush | None = None
    handled: set[int] = field(default_factory=set)
    """Servers that have handled its last push."""
    tickets: deque[int] = field(default_factory=deque)
    """Tickets of its next pushes."""


class _Player:
    """Replayer of recorded orders of pushes, with the state of all gates and workers."""

    def __init__(
        self, make_gates: Callable[[int], Sequence[AdmissionGate]], tickets: Tickets, workers: int
    ) -> None:
        self.make_gates, self.tickets, self.count = make_gates, tickets, workers
        self.gates = make_gates(tickets.left)
        self.version = [0] * len(self.gates)
        self.pushes: list[ScriptedPush] = []
        self.dropped = [0]

    def play(self, order: PushOrder, ahead: int) -> bool:
        """Replay all events of a recorded order of pushes; return whether this was possible.

        Its workers prefetched up to `ahead` tickets.
        """
        self.tickets.ahead = ahead
        # Lists, since reading single elements of an array takes twenty times as long.
        self.events = [row.tolist() for row in order]
        known = range(-self.count, 3 * self.count)
        if len(self.events) != len(self.gates):
            return False
        if any(event not in known for events in self.events for event in events):
            return False
        self._begin()
        try:
            while any(self.advance(server) for server in range(len(self.gates))):
                pass
        except KeyError:  # a worker that has left does something other than rejoin
            return False
        return sum(map(len, self.events)) == sum(self.position)

    def _begin(self) -> None:
        """Start to replay an order of pushes, at which all workers read the current parameters."""
        for worker in range(self.count):
            self.tickets.give_back(worker)
        self.gates = self.make_gates(self.tickets.left)
        self.position = [0] * len(self.gates)
        self.lives = [[0] * self.count for _ in self.gates]
        """Number of times that each worker has rejoined, by server."""
        self.away: list[set[int]] = [set() for _ in self.gates]
        """Workers that have left, by server."""
        self.finished: set[int] = set()
        """Workers whose loader has finished."""
        self.workers: defaultdict[tuple[int, int], _Worker] = defaultdict(_Worker)
        """Workers by (number, number of returns)."""
        for server in range(len(self.gates)):
            self._release(server, range(self.count))

    def advance(self, server: int) -> bool:
        """Replay a server's next events as far as possible; return whether there were any."""
        begin = self.position[server]
        while self.position[server] < len(self.events[server]) and self._handle(server):
            self.position[server] += 1
        return self.position[server] > begin

    def _handle(self, server: int) -> bool:
        """Replay a server's next event; return False if it must wait for other servers."""
        event = self.events[server][self.position[server]]
        if event < 0:
            self._leave(server, -1 - event)
        elif event >= 2 * self.count:
            self.finished.add(event - 2 * self.count)
        elif event >= self.count:
            self._join(server, event - self.count)
        else:
            return self._push(server, event)
        return True

    def _leave(self, server: int, worker: int) -> None:
        effects = self.gates[server].leave(worker)
        self.away[server].add(worker)
        if server == 0:
            self.tickets.give_back(worker)
        self._release(server, effects.released)

    def _join(self, server: int, worker: int) -> None:
        self.away[server].remove(worker)
        self.lives[server][worker] += 1
        if server == 0:
            self.finished.discard(worker)
        self._release(server, self.gates[server].join(worker).released)

    def _push(self, server: int, number: int) -> bool:
        worker = self._worker(server, number)
        if len(worker.read) == len(self.gates) and worker.tickets:
            read = [worker.read[each] for each in range(len(self.gates))]
            worker.push = ScriptedPush(
                number, worker.tickets.popleft(), read, [-1] * len(self.gates)
            )
            worker.read, worker.handled = {}, set()
        if worker.push is None or server in worker.handled:
            return False
        worker.handled.add(server)
        effects = self.gates[server].push(number)
        for other in effects.applied:
            self._apply(server, other)
        if server == 0:
            self.tickets.apply_effects(effects)
            self.dropped[-1] += effects.dropped
            if effects.applied:
                self.dropped.append(0)
        self.version[server] += bool(effects.applied)
        self._release(server, effects.released)
        return True

    def _apply(self, server: int, number: int) -> None:
        push = self._worker(server, number).push
        assert push is not None
        if max(push.applied) < 0:
            self.pushes.append(push)
        push.applied[server] = self.version[server]

    def _release(self, server: int, workers: Sequence[int]) -> None:
        for number in workers:
            worker = self._worker(server, number)
            worker.read[server] = self.version[server]
            if server == 0 and number not in self.finished:
                worker.tickets += self.tickets.issue(number)

    def _worker(self, server: int, number: int) -> _Worker:
        """Return a worker's state for the number of its returns that this server has handled."""
        return self.workers[number, self.lives[server][number]]
