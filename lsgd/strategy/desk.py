"""What a server of real processes decides, without any of their tensors: whose push is handled,
who goes on with which tickets, and when the order has ended.

All that it decides is in the order that it records, so that `lsgd.strategy.order.play` comes to the
same. A worker that gets no ticket leaves its gate, so that nobody waits for it, and is back when
another's ticket is free again.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from lsgd.strategy.gate import Effects, Gate, Tickets


class Kind(IntEnum):
    """What a server says to a worker."""

    GO = 0
    """Here are the values that the next push is computed with."""
    WAIT = 1
    """There is no ticket now."""
    END = 2
    """The order has ended."""


@dataclass(frozen=True)
class Reply:
    """What a worker is told, with the values of this moment."""

    worker: int
    kind: Kind
    tickets: list[int] = field(default_factory=list)
    """More batches for it, of server 0."""
    last: bool = False
    """Whether these are the last ones, but for those that a lost worker has had."""


class Desk:
    """The decisions of one server in one order. `tickets` are those of server 0; the other servers
    have none, and hear of a worker that waits for one from itself, or from server 0 if that decides
    for all and they follow."""

    def __init__(
        self, gate: Gate, workers: int, tickets: Tickets | None = None, *, follows: bool = False
    ) -> None:
        self.gate, self.count, self.tickets, self.follows = gate, workers, tickets, follows
        self.order: list[int] = []
        """As lsgd.strategy.order.Order has them."""
        self.lives = [0] * workers
        """How many times each worker has come back."""
        self.computing: set[int] = set()
        """The workers whose push is to come; kept by server 0."""
        self.away: set[int] = set()
        """The workers that have left the gate: without a ticket, or lost."""
        self.lost: set[int] = set()
        self.finished: set[int] = set()
        """The workers whose loader has come to its end: they take no further ticket."""
        self.closed: set[int] = set()
        """Of another server than 0, the workers that know of the end."""
        self.stopped = self.over = False
        self._parking: deque[int] = deque()

    def begin(self, present: Iterable[int]) -> list[Reply]:
        """Release all workers; those that are not present are lost at once."""
        replies = self._release(range(self.count)) + self._go_on()
        for worker in sorted({*range(self.count)} - {*present}):
            replies += self.lose(worker)
        return replies

    def push(self, worker: int) -> tuple[Effects, list[Reply]]:
        """A push has come: what it does, and who is told what."""
        self.order.append(worker)
        self.computing.discard(worker)
        effects = self.gate.push(worker)
        if self.tickets:
            self.tickets.settle(effects)
        return effects, self._release(effects.released) + self._go_on()

    def pause(self, worker: int) -> list[Reply]:
        """A worker has no ticket, as it says itself; server 0 knows."""
        return self._leave(worker) + self._go_on()

    def come_back(self, worker: int, life: int | None = None) -> list[Reply]:
        """A worker has a ticket again, or is another process now. Server 0 counts its lives, and
        the other servers count along, whether or not they have seen them all."""
        replies = []
        if worker not in self.away:
            replies += self._leave(worker)
        self.lost.discard(worker)
        self.finished.discard(worker)
        while life is not None and self.lives[worker] < life - 1:
            self._note_return(worker)
            self.gate.join(worker)
            replies += self._leave(worker)
        if self.stopped:
            return replies + self._go_on()
        return replies + self._join(worker) + self._go_on()

    def lose(self, worker: int) -> list[Reply]:
        """A worker is gone, and others get its tickets."""
        self.lost.add(worker)
        self.computing.discard(worker)
        gone = worker in self.away or self.follows
        return ([] if gone else self._leave(worker)) + self._go_on()

    def follow(self, event: int) -> list[Reply]:
        """Do what server 0 has done: a worker has left, or is back."""
        return self._leave(-1 - event) if event < 0 else self._join(event - self.count)

    def stop(self) -> list[Reply]:
        """Release nobody any more: the order ends when no worker computes."""
        self.stopped = True
        return self._go_on()

    def close(self, worker: int) -> list[Reply]:
        """A worker knows from server 0 that the order has ended; another server then tells it that
        it knows too."""
        self.closed.add(worker)
        if self.tickets or (self.follows and not self.stopped):
            return self._go_on()
        return [Reply(worker, Kind.END), *self._go_on()]

    def no_more(self) -> list[Reply]:
        """Server 0, which is followed, has come to its end."""
        self.stopped = True
        return [*(Reply(worker, Kind.END) for worker in sorted(self.closed)), *self._go_on()]

    @property
    def stuck(self) -> bool:
        """Whether there are tickets and nobody to use them, until a lost worker is back."""
        return bool(self.tickets and not self.over and not self.computing)

    def _release(self, workers: Iterable[int]) -> list[Reply]:
        replies = []
        for worker in workers:
            if self.stopped:
                continue
            if self.tickets is None:
                replies.append(Reply(worker, Kind.GO))
                continue
            issued = self.tickets.issue(worker)
            if held := len(self.tickets.held[worker]):
                self.computing.add(worker)
                replies.append(Reply(worker, Kind.GO, issued, last=held <= self.tickets.ahead))
            else:
                self._parking.append(worker)
        return replies

    def _go_on(self) -> list[Reply]:
        """What follows by itself from who has which tickets."""
        replies = []
        while self._parking or self._wanted():
            if self._parking:
                worker = self._parking.popleft()
                replies += [Reply(worker, Kind.WAIT), *self._leave(worker)]
            else:
                replies += self._join(min(self._wanted()))
        if self.tickets:
            if not self.over and not self.computing and (self.stopped or not self.tickets.left):
                self.over = True
                present = sorted({*range(self.count)} - self.lost)
                replies += [Reply(worker, Kind.END) for worker in present]
        elif len(self.closed | self.lost) == self.count:
            self.over = self.stopped or not self.follows
        return replies

    def _wanted(self) -> set[int]:
        """The workers that wait, if there is a ticket for one of them."""
        if self.stopped or not (self.tickets and self.tickets.free):
            return set()
        return self.away - self.lost - self.finished

    def _leave(self, worker: int) -> list[Reply]:
        self.order.append(-1 - worker)
        self.away.add(worker)
        effects = self.gate.leave(worker)
        if self.tickets:
            self.tickets.give_back(worker)
        return self._release(effects.released)

    def _join(self, worker: int) -> list[Reply]:
        self._note_return(worker)
        self.away.discard(worker)
        return self._release(self.gate.join(worker).released)

    def _note_return(self, worker: int) -> None:
        self.order.append(self.count + worker)
        self.lives[worker] += 1
