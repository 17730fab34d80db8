"""The order in which servers handle pushes: all that decides an asynchronous run but the recipe.

When a push comes never depends on what it says. So the order is data of its own, one small number
per push and server, which a virtual clock draws, real processes record or a file has. This module
finds out what each push of an epoch has read and where it goes, before any of them is computed.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import Refused
from lsgd.strategy.gate import Gate, Tickets

Order = list[NDArray[np.int16]]
"""The workers whose pushes each server handled, in turn, a row for each server; -1 - worker says
that this worker leaves, and the number of workers more that it is back."""


@dataclass
class Push:
    """A gradient that is applied. A version is the number of updates that a server's parameters
    have had in this epoch."""

    worker: int
    ticket: int
    """The batch of the epoch that it is computed of."""
    read: list[int]
    """The version, of each server, that it is computed with."""
    applied: list[int]
    """The version, of each server, that it is applied to; less `read`, this is its staleness. It is
    -1 where a push has not come, since its worker was lost."""


@dataclass(frozen=True)
class Script:
    """What happens in an epoch. Where one gate decides for all servers, they are as one here."""

    pushes: list[Push]
    """The pushes that are applied: each reads what those before it have made."""
    dropped: list[int]
    """For each update of server 0 the pushes that it has thrown away since the update before."""

    @cached_property
    def updates(self) -> list[list[list[int]]]:
        """By server and version, which pushes are applied to it together."""
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
        """By step of the epoch, which pushes are computed in it: those of an update, or one, and
        with it those before it that have not come to server 0."""
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
        """The last push that is computed with a version, by (server, version)."""
        return {
            (server, version): number
            for number, push in enumerate(self.pushes)
            for server, version in enumerate(push.read)
        }


def play(
    orders: Sequence[Order],
    make_gates: Callable[[int], Sequence[Gate]],
    tickets: Tickets,
    workers: int,
) -> Script:
    """Go through an epoch whose servers handle pushes in these orders, each by its gate.

    An epoch that real processes had to leave goes on with another order: all workers read anew, and
    the tickets that were not used are issued again; `make_gates` takes their number. What the last
    order leaves of them is to be seen in `tickets`. Raises Refused if the servers cannot handle
    pushes so, and the order is one of another run.
    """
    player = _Player(make_gates, tickets, workers)
    if not all(player.play(order) for order in orders):
        raise Refused(
            f"this order of pushes is one of another run: with {workers} workers and "
            f"{len(player.gates)} servers it stops after {len(player.pushes)} pushes; write the "
            "recipe that it was made with"
        )
    return Script(player.pushes, player.dropped[:-1])


@dataclass
class _Worker:
    """A worker from its start, or its return, to its end."""

    read: dict[int, int] = field(default_factory=dict)
    """What it has got of the servers for its next push, until that is computed."""
    push: Push | None = None
    handled: set[int] = field(default_factory=set)
    """The servers that have handled its last push."""
    tickets: deque[int] = field(default_factory=deque)
    """The batches of its next pushes."""


class _Player:
    def __init__(
        self, make_gates: Callable[[int], Sequence[Gate]], tickets: Tickets, workers: int
    ) -> None:
        self.make_gates, self.tickets, self.count = make_gates, tickets, workers
        self.gates = make_gates(tickets.left)
        self.version = [0] * len(self.gates)
        self.pushes: list[Push] = []
        self.dropped = [0]

    def play(self, order: Order) -> bool:
        """Handle all events of an order; returns whether they can be handled."""
        # Lists, since to read single numbers of an array takes twenty times as long.
        self.events = [row.tolist() for row in order]
        known = range(-self.count, 2 * self.count)
        if len(self.events) != len(self.gates):
            return False
        if any(event not in known for events in self.events for event in events):
            return False
        self._begin()
        try:
            while any(self.advance(server) for server in range(len(self.gates))):
                pass
        except KeyError:  # a worker that has left does something else than to come back
            return False
        return sum(map(len, self.events)) == sum(self.position)

    def _begin(self) -> None:
        """Let all workers begin with the parameters as they are."""
        for worker in range(self.count):
            self.tickets.give_back(worker)
        self.gates = self.make_gates(self.tickets.left)
        self.position = [0] * len(self.gates)
        self.lives = [[0] * self.count for _ in self.gates]
        """By server, how many times each worker has come back to it."""
        self.away: list[set[int]] = [set() for _ in self.gates]
        """By server, the workers that have left it."""
        self.workers: defaultdict[tuple[int, int], _Worker] = defaultdict(_Worker)
        """By number and life."""
        for server in range(len(self.gates)):
            self._release(server, range(self.count))

    def advance(self, server: int) -> bool:
        """Handle what this server can handle; returns whether it was anything."""
        begin = self.position[server]
        while self.position[server] < len(self.events[server]) and self._handle(server):
            self.position[server] += 1
        return self.position[server] > begin

    def _handle(self, server: int) -> bool:
        """Handle the next event, unless it has to wait for what other servers do."""
        event = self.events[server][self.position[server]]
        if event < 0:
            self._leave(server, -1 - event)
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
        self._release(server, self.gates[server].join(worker).released)

    def _push(self, server: int, number: int) -> bool:
        worker = self._worker(server, number)
        if len(worker.read) == len(self.gates) and worker.tickets:
            read = [worker.read[each] for each in range(len(self.gates))]
            worker.push = Push(number, worker.tickets.popleft(), read, [-1] * len(self.gates))
            worker.read, worker.handled = {}, set()
        if worker.push is None or server in worker.handled:
            return False
        worker.handled.add(server)
        effects = self.gates[server].push(number)
        for other in effects.applied:
            self._apply(server, other)
        if server == 0:
            self.tickets.settle(effects)
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
            if server == 0:
                worker.tickets += self.tickets.issue(number)

    def _worker(self, server: int, number: int) -> _Worker:
        """A worker as this server sees it: it may not know yet of its end and return."""
        return self.workers[number, self.lives[server][number]]
