"""The order in which servers handle pushes: all that decides an asynchronous run but the recipe.

When a push comes never depends on what it says. So the order is data of its own, one small number
per push and server, which a virtual clock draws or a file has. This module finds out what each push
of an epoch has read and where it goes, before any of them is computed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.strategy.gate import Gate, Tickets

Order = NDArray[np.int16]
"""The workers whose pushes each server handled, in turn, shape (servers, events); -1 - worker says
that this worker leaves."""


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
    """The version, of each server, that it is applied to; less `read`, this is its staleness."""


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
                made[push.applied[server]].append(number)
        return updates

    @cached_property
    def steps(self) -> list[list[int]]:
        """By step of the epoch, which pushes are computed in it: those of an update, or one."""
        together = self.updates[0]
        return together if len(self.updates) == 1 else [[i] for i in range(len(self.pushes))]

    @cached_property
    def last_read(self) -> dict[tuple[int, int], int]:
        """The last push that is computed with a version, by (server, version)."""
        return {
            (server, version): number
            for number, push in enumerate(self.pushes)
            for server, version in enumerate(push.read)
        }


def play(order: Order, gates: Sequence[Gate], tickets: Tickets, workers: int) -> Script:
    """Go through an epoch whose servers handle pushes in this order, each by its gate.

    Raises Refused if they cannot, so that the order is one of another run.
    """
    player = _Player(order, gates, tickets, workers)
    if not player.play():
        raise Refused(
            f"this order of pushes is one of another run: with {workers} workers and "
            f"{len(gates)} servers it stops after {len(player.pushes)} pushes; write the recipe "
            "that it was made with"
        )
    return Script(player.pushes, player.dropped[:-1])


@dataclass
class _Worker:
    ticket: int | None = None
    read: dict[int, int] = field(default_factory=dict)
    """What it has got of the servers for its next push, until that is computed."""
    push: Push | None = None
    handled: set[int] = field(default_factory=set)
    """The servers that have handled its last push."""


class _Player:
    def __init__(self, order: Order, gates: Sequence[Gate], tickets: Tickets, workers: int) -> None:
        # Lists, since to read single numbers of an array takes twenty times as long.
        self.events = [row.tolist() for row in order]
        self.gates, self.tickets = gates, tickets
        self.workers = [_Worker() for _ in range(workers)]
        self.position = [0] * len(gates)
        self.version = [0] * len(gates)
        self.pushes: list[Push] = []
        self.dropped = [0]
        for server in range(len(gates)):
            self._release(server, range(workers))

    def play(self) -> bool:
        """Handle all events; returns whether they are those of a whole epoch."""
        known = range(-len(self.workers), len(self.workers))
        if len(self.events) != len(self.gates):
            return False
        if any(event not in known for events in self.events for event in events):
            return False
        try:
            while any(self.advance(server) for server in range(len(self.gates))):
                pass
        except KeyError:  # a gate does not know a worker that has left
            return False
        left = sum(map(len, self.events)) - sum(self.position)
        return not (left or self.tickets.free or self.tickets.held)

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
            self._release(server, self.gates[server].leave(-1 - event).released)
            return True
        worker = self.workers[event]
        if len(worker.read) == len(self.gates) and worker.ticket is not None:
            read = [worker.read[each] for each in range(len(self.gates))]
            worker.push = Push(event, worker.ticket, read, [-1] * len(self.gates))
            worker.read, worker.handled = {}, set()
        if worker.push is None or server in worker.handled:
            return False
        worker.handled.add(server)
        effects = self.gates[server].push(event)
        for number in effects.applied:
            self._apply(server, number)
        if server == 0:
            self.tickets.settle(effects)
            self.dropped[-1] += effects.dropped
            if effects.applied:
                self.dropped.append(0)
        self.version[server] += bool(effects.applied)
        self._release(server, effects.released)
        return True

    def _apply(self, server: int, number: int) -> None:
        push = self.workers[number].push
        assert push is not None
        if max(push.applied) < 0:
            self.pushes.append(push)
        push.applied[server] = self.version[server]

    def _release(self, server: int, workers: Sequence[int]) -> None:
        for number in workers:
            worker = self.workers[number]
            worker.read[server] = self.version[server]
            if server == 0:
                worker.ticket = self.tickets.issue(number)


def digest(order: Order) -> str:
    """A hash of an order, the same on every machine."""
    return hashlib.sha256(f"{order.shape}".encode() + order.astype("<i2").tobytes()).hexdigest()


def save_order(path: Path, order: Order) -> None:
    """Write the order into a new file of numpy's, 2 bytes per push and server."""
    with whole(path) as file:
        np.save(file, order.astype("<i2"))


def load_order(path: Path) -> Order:
    """The order that a file has; raises Refused if it is none."""
    try:
        order = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refused(f"{path} cannot be read as an order of pushes ({error})") from None
    if not isinstance(order, np.ndarray) or order.dtype != np.dtype("<i2") or order.ndim != 2:
        raise Refused(f"{path} is no order of pushes: those are of int16, one row per server")
    return order
