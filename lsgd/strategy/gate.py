"""Which pushes make an update, and who may go on: what tells one parameter server from another.

A gate is a state machine of whole numbers, one for each server. Workers read the parameters,
compute a gradient and push it; a push is handled at once and as a whole: what it makes of the
parameters, and which workers get the parameters of this moment. So one number per push, the
worker's, is all that a run has to know of its timing.
"""

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Effects:
    """What the handling of one push does."""

    applied: tuple[int, ...] = ()
    """The workers whose pushes make one update now, added in this order; empty for no update."""
    dropped: bool = False
    """Whether this push is thrown away."""
    late: tuple[int, ...] = ()
    """The workers still computing whose next push will be thrown away: others may have their
    examples."""
    released: tuple[int, ...] = ()
    """The workers that get the parameters as they are after the update, and go on."""


class Gate(Protocol):
    """The state machine of a server. All workers have read the first parameters to begin with."""

    def push(self, worker: int) -> Effects:
        """A gradient of this worker has come."""

    def leave(self, worker: int) -> Effects:
        """This worker, which owes no push, will push no more."""

    def join(self, worker: int) -> Effects:
        """This worker, which had left, is back."""


class Barrier:
    """Synchronous updates, each by the mean over the first `pushes` fresh gradients.

    With fewer than the workers these are the backup workers of Chen et al. 2016: a push that was
    computed with older parameters is dropped, as by TensorFlow's SyncReplicasOptimizer. The last
    update takes what is left of the `tickets`.
    """

    def __init__(self, workers: int, *, pushes: int, tickets: int) -> None:
        self.pushes, self.left = pushes, tickets
        self.updates = 0
        self.has_read = dict.fromkeys(range(workers), 0)
        """The number of updates in what each worker that is there has read last."""
        self.fresh: list[int] = []

    def push(self, worker: int) -> Effects:
        """Wait for the other fresh pushes, or drop this one."""
        if self.has_read[worker] < self.updates:
            self.has_read[worker] = self.updates
            return Effects(dropped=True, released=(worker,))
        self.fresh.append(worker)
        return self._update()

    def leave(self, worker: int) -> Effects:
        """The others go on if they are enough for an update, for which no push of this worker that
        waits counts: others have its batch."""
        del self.has_read[worker]
        self.fresh = [other for other in self.fresh if other != worker]
        return Effects()

    def join(self, worker: int) -> Effects:
        """The worker gets the newest parameters."""
        self.has_read[worker] = self.updates
        return Effects(released=(worker,))

    def _update(self) -> Effects:
        if len(self.fresh) < min(self.pushes, self.left):
            return Effects()
        # In the order of the workers, so that the sum does not depend on who came first.
        applied, self.fresh = tuple(sorted(self.fresh)), []
        late = tuple(w for w, read in self.has_read.items() if read == self.updates)
        self.left -= len(applied)
        self.updates += 1
        released = tuple(worker for worker in applied if worker in self.has_read)
        self.has_read |= dict.fromkeys(released, self.updates)
        return Effects(applied, late=tuple(w for w in late if w not in applied), released=released)


class Bounded:
    """Asynchronous updates, one by each push; a worker waits while it is `slack` pushes ahead of
    the slowest.

    Stale synchronous parallel (Ho et al. 2013); an infinite slack is asynchronous SGD.
    """

    def __init__(self, workers: int, *, slack: float = math.inf) -> None:
        self.slack = slack
        self.pushed = dict.fromkeys(range(workers), 0)
        """The number of pushes of each worker that is there."""
        self.waiting: set[int] = set()

    def push(self, worker: int) -> Effects:
        """Make an update, and release who is no longer too far ahead."""
        self.pushed[worker] += 1
        self.waiting.add(worker)
        return Effects((worker,), released=self._free())

    def leave(self, worker: int) -> Effects:
        """Nobody waits any more for this worker."""
        del self.pushed[worker]
        self.waiting.discard(worker)
        return Effects(released=self._free())

    def join(self, worker: int) -> Effects:
        """The worker gets the newest parameters, and counts as slow as the slowest."""
        self.pushed[worker] = min(self.pushed.values(), default=0)
        return Effects(released=(worker,))

    def _free(self) -> tuple[int, ...]:
        slowest = min(self.pushed.values(), default=0)
        free = sorted(w for w in self.waiting if self.pushed[w] - slowest <= self.slack)
        self.waiting.difference_update(free)
        return tuple(free)


class Tickets:
    """The batches of an epoch, each for one worker at a time; the only thing that ends an epoch.

    One server has them, so that every example is seen once, whatever the stragglers. A worker that
    holds none is done. It holds the batch that it computes with and up to `ahead` more, which its
    loader can read meanwhile.
    """

    def __init__(self, count: int, *, ahead: int = 0) -> None:
        self.ahead = ahead
        self.free = list(range(count))
        self.held: defaultdict[int, deque[int]] = defaultdict(deque)
        """By worker, in the order in which it computes with them."""

    def issue(self, worker: int) -> list[int]:
        """The next batches of a worker, as many as there are and as it may hold."""
        issued = []
        while self.free and len(self.held[worker]) <= self.ahead:
            issued.append(heapq.heappop(self.free))
            self.held[worker].append(issued[-1])
        return issued

    def settle(self, effects: Effects) -> None:
        """Take the batches of the pushes that are applied, and let others have those of workers
        whose push will be dropped, if they hold one: who is done for the epoch does not."""
        for worker in effects.applied:
            self.held[worker].popleft()
        for worker in effects.late:
            if self.held[worker]:
                heapq.heappush(self.free, self.held[worker].popleft())

    def give_back(self, worker: int) -> None:
        """Let others have all batches of a worker that will not push them."""
        for ticket in self.held.pop(worker, ()):
            heapq.heappush(self.free, ticket)

    @property
    def left(self) -> int:
        """How many batches have not been used yet."""
        return len(self.free) + sum(map(len, self.held.values()))
