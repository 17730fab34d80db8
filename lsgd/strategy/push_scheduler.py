"""Decisions of a parameter server in real time: who is released, and when the epoch's pushes end.

They include which push is handled, and which worker continues with which tickets. All of them
follow from the recorded order, so `lsgd.strategy.order.play_orders` reproduces them. No tensors are
needed. A worker without a ticket leaves its gate, so that no other worker waits for it, and rejoins
when another worker's ticket becomes free.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from lsgd.strategy.gate import AdmissionGate, PushEffects, Tickets


class ReplyType(IntEnum):
    """Type of a server's reply to a worker."""

    GO = 0
    """Reply with the values for the next push."""
    WAIT = 1
    """Reply that no ticket is free now."""
    END = 2
    """Reply that the order has ended."""


@dataclass(frozen=True)
class ServerReply:
    """Reply of a parameter server to a worker, which is sent with the current parameters."""

    worker: int
    kind: ReplyType
    tickets: list[int] = field(default_factory=list)
    """Further tickets for the worker, from server 0 only."""
    last: bool = False
    """Whether no tickets are left after these, except those that a lost worker held."""


class PushScheduler:
    """Scheduler of a parameter server: which worker continues when, and when an epoch ends.

    It lasts until the end of one order of pushes. Server 0 has the `tickets`. The other servers
    learn that a worker waits for a ticket from the worker itself or, where one gate decides for all
    servers and they follow it, from server 0.
    """

    def __init__(
        self,
        gate: AdmissionGate,
        workers: int,
        tickets: Tickets | None = None,
        *,
        follows: bool = False,
    ) -> None:
        self.gate, self.count, self.tickets, self.follows = gate, workers, tickets, follows
        self.order: list[int] = []
        """Events so far, encoded as in lsgd.strategy.order.PushOrder."""
        self.lives = [0] * workers
        """Number of times that each worker has rejoined."""
        self.computing: set[int] = set()
        """Workers that are computing a push; maintained by server 0 only."""
        self.away: set[int] = set()
        """Workers that have left the gate, because they have no ticket or are lost."""
        self.lost: set[int] = set()
        self.finished: set[int] = set()
        """Workers whose loader has finished, which take no further ticket until they restart."""
        self.closed: set[int] = set()
        """Workers that have acknowledged the end; maintained by the servers other than 0."""
        self.is_stopping = self.over = False
        self._parking: deque[int] = deque()

    def begin(self, present: Iterable[int]) -> list[ServerReply]:
        """Release all workers to compute, and count absent ones as lost; return the replies."""
        replies = self._release(range(self.count)) + self._go_on()
        for worker in sorted({*range(self.count)} - {*present}):
            replies += self.lose(worker)
        return replies

    def push(self, worker: int) -> tuple[PushEffects, list[ServerReply]]:
        """Handle a push of this worker; return its effects and the replies to send."""
        self.order.append(worker)
        self.computing.discard(worker)
        effects = self.gate.push(worker)
        if self.tickets:
            self.tickets.apply_effects(effects)
        return effects, self._release(effects.released) + self._go_on()

    def finish(self, worker: int) -> None:
        """Handle a worker's notice that its loader has finished; server 0 records it."""
        if self.tickets and worker not in self.finished:
            self.order.append(2 * self.count + worker)
        self.finished.add(worker)

    def pause(self, worker: int) -> list[ServerReply]:
        """Handle a worker's notice that server 0 has no ticket (batch) for it."""
        return self._leave(worker) + self._go_on()

    def rejoin(self, worker: int, life: int | None = None) -> list[ServerReply]:
        """Handle the return of a worker that has a ticket (batch) again or has restarted.

        Server 0 counts the restarts; the other servers adopt its count, whether or not they noticed
        each of them.
        """
        replies = []
        if worker not in self.away:
            replies += self._leave(worker)
        self.lost.discard(worker)
        self.finished.discard(worker)
        while life is not None and self.lives[worker] < life - 1:
            self._note_return(worker)
            self.gate.join(worker)
            replies += self._leave(worker)
        if self.is_stopping:
            return replies + self._go_on()
        return replies + self._join(worker) + self._go_on()

    def lose(self, worker: int) -> list[ServerReply]:
        """Handle the loss of a worker, whose tickets (batches) become free for others."""
        self.lost.add(worker)
        self.computing.discard(worker)
        gone = worker in self.away or self.follows
        return ([] if gone else self._leave(worker)) + self._go_on()

    def follow(self, event: int) -> list[ServerReply]:
        """Repeat on this server an event of server 0: a worker has left or rejoined."""
        if event >= 2 * self.count:
            return []  # a finished loader is a matter of tickets
        return self._leave(-1 - event) if event < 0 else self._join(event - self.count)

    def stop(self) -> list[ServerReply]:
        """Stop releasing workers, so that the order ends once the pushes under way have arrived."""
        self.is_stopping = True
        return self._go_on()

    def close(self, worker: int) -> list[ServerReply]:
        """Handle a worker's notice that server 0 ended the order; other servers acknowledge it."""
        self.closed.add(worker)
        if self.tickets or (self.follows and not self.is_stopping):
            return self._go_on()
        return [ServerReply(worker, ReplyType.END), *self._go_on()]

    def no_more(self) -> list[ServerReply]:
        """Handle server 0's notice to a server that follows it: the order of pushes has ended."""
        self.is_stopping = True
        return [
            *(ServerReply(worker, ReplyType.END) for worker in sorted(self.closed)),
            *self._go_on(),
        ]

    @property
    def is_stuck(self) -> bool:
        """Whether batches are left that no worker can compute until a lost worker rejoins."""
        return bool(self.tickets and not self.over and not self.computing)

    def _release(self, workers: Iterable[int]) -> list[ServerReply]:
        """Return the replies that release these workers; park workers without a ticket (batch)."""
        replies = []
        for worker in workers:
            if self.is_stopping:
                continue
            if self.tickets is None:
                replies.append(ServerReply(worker, ReplyType.GO))
                continue
            issued = [] if worker in self.finished else self.tickets.issue(worker)
            if held := len(self.tickets.held[worker]):
                self.computing.add(worker)
                replies.append(
                    ServerReply(worker, ReplyType.GO, issued, last=held <= self.tickets.ahead)
                )
            else:
                self._parking.append(worker)
        return replies

    def _go_on(self) -> list[ServerReply]:
        """Pause workers without a ticket, rejoin waiting ones, detect the end; return replies."""
        replies = []
        while self._parking or self._wanted():
            if self._parking:
                worker = self._parking.popleft()
                replies += [ServerReply(worker, ReplyType.WAIT), *self._leave(worker)]
            else:
                replies += self._join(min(self._wanted()))
        if self.tickets:
            if not self.over and not self.computing and (self.is_stopping or not self.tickets.left):
                self.over = True
                present = sorted({*range(self.count)} - self.lost)
                replies += [ServerReply(worker, ReplyType.END) for worker in present]
        elif len(self.closed | self.lost) == self.count:
            self.over = self.is_stopping or not self.follows
        return replies

    def _wanted(self) -> set[int]:
        """Return the workers that wait for a ticket (batch) if one is free, else an empty set."""
        if self.is_stopping or not (self.tickets and self.tickets.free):
            return set()
        return self.away - self.lost - self.finished

    def _leave(self, worker: int) -> list[ServerReply]:
        self.order.append(-1 - worker)
        self.away.add(worker)
        effects = self.gate.leave(worker)
        if self.tickets:
            self.tickets.give_back(worker)
        return self._release(effects.released)

    def _join(self, worker: int) -> list[ServerReply]:
        self._note_return(worker)
        self.away.discard(worker)
        return self._release(self.gate.join(worker).released)

    def _note_return(self, worker: int) -> None:
        self.order.append(self.count + worker)
        self.lives[worker] += 1
