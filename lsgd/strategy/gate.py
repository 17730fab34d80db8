"""Admission gates: state machines that decide which pushes make an update and which workers wait.

Parameter-server strategies differ in their gate, and each server has one. Workers read the
parameters, compute a gradient and push it. A push is handled atomically: the gate decides which
update it makes, and which workers receive the parameters of this moment. So one integer per push,
the worker, is all that determines the timing of a run.
"""

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class PushEffects:
    """Effects of one push at a server: pushes applied or dropped, and workers released."""

    applied: tuple[int, ...] = ()
    """Workers whose pushes make one update now, added in this order; empty for no update."""
    dropped: bool = False
    """Whether the gradient of this push is discarded."""
    dropped_next: tuple[int, ...] = ()
    """Workers whose next push will be dropped, so that others may compute their examples."""
    released: tuple[int, ...] = ()
    """Workers that receive the parameters after the update, and continue."""


class AdmissionGate(Protocol):
    """Gate of a server: it decides which pushes make an update and which workers wait.

    It starts after all workers' first read.
    """

    def push(self, worker: int) -> PushEffects:
        """Handle a worker's push (gradient); return the pushes applied and workers released."""

    def leave(self, worker: int) -> PushEffects:
        """Remove a worker without a push under way; return which workers this releases."""

    def join(self, worker: int) -> PushEffects:
        """Add a worker that had left; return which workers this releases."""


class BarrierGate:
    """Gate of synchronous SGD: each update needs enough fresh gradients, and workers wait for it.

    An update is by the mean over the first `pushes` fresh gradients. With fewer pushes than
    workers, the other workers are the backup workers of Chen et al. 2016: a push that was computed
    with older parameters is dropped, as in TensorFlow's SyncReplicasOptimizer. The last update uses
    the remaining `tickets`.
    """

    def __init__(self, workers: int, *, pushes: int, tickets: int) -> None:
        self.pushes, self.left = pushes, tickets
        self.updates = 0
        self.has_read = dict.fromkeys(range(workers), 0)
        """Number of updates in the parameters that each present worker has read last."""
        self.fresh: list[int] = []

    def push(self, worker: int) -> PushEffects:
        """Count a worker's fresh push, and update once there are enough; drop a stale push."""
        if self.has_read[worker] < self.updates:
            self.has_read[worker] = self.updates
            return PushEffects(dropped=True, released=(worker,))
        self.fresh.append(worker)
        return self._update()

    def leave(self, worker: int) -> PushEffects:
        """Remove a worker and its waiting push, whose batch another worker computes."""
        del self.has_read[worker]
        self.fresh = [other for other in self.fresh if other != worker]
        return PushEffects()

    def join(self, worker: int) -> PushEffects:
        """Add a worker that had left, and send it the newest parameters."""
        self.has_read[worker] = self.updates
        return PushEffects(released=(worker,))

    def _update(self) -> PushEffects:
        if len(self.fresh) < min(self.pushes, self.left):
            return PushEffects()
        # In the order of the workers, so that the sum does not depend on the order of arrival.
        applied, self.fresh = tuple(sorted(self.fresh)), []
        late = tuple(w for w, read in self.has_read.items() if read == self.updates)
        self.left -= len(applied)
        self.updates += 1
        released = tuple(worker for worker in applied if worker in self.has_read)
        self.has_read |= dict.fromkeys(released, self.updates)
        return PushEffects(
            applied, dropped_next=tuple(w for w in late if w not in applied), released=released
        )


class BoundedStalenessGate:
    """Gate of asynchronous SGD: each push makes an update, and workers too far ahead wait.

    A worker waits while it is more than `slack` pushes ahead. The lead counts from the slowest
    worker: stale synchronous parallel (Ho et al. 2013). An infinite slack is asynchronous SGD.
    """

    def __init__(self, workers: int, *, slack: float = math.inf) -> None:
        self.slack = slack
        self.pushed = dict.fromkeys(range(workers), 0)
        """Number of pushes of each present worker."""
        self.waiting: set[int] = set()

    def push(self, worker: int) -> PushEffects:
        """Make an update by a worker's push, and release the workers no longer too far ahead."""
        self.pushed[worker] += 1
        self.waiting.add(worker)
        return PushEffects((worker,), released=self._free())

    def leave(self, worker: int) -> PushEffects:
        """Remove a worker, and release the workers that waited for it as the slowest."""
        del self.pushed[worker]
        self.waiting.discard(worker)
        return PushEffects(released=self._free())

    def join(self, worker: int) -> PushEffects:
        """Add a worker with the push count of the slowest, and send it the newest parameters."""
        self.pushed[worker] = min(self.pushed.values(), default=0)
        return PushEffects(released=(worker,))

    def _free(self) -> tuple[int, ...]:
        slowest = min(self.pushed.values(), default=0)
        free = sorted(w for w in self.waiting if self.pushed[w] - slowest <= self.slack)
        self.waiting.difference_update(free)
        return tuple(free)


class Tickets:
    """Tickets (batches of an epoch), each issued to one worker at a time until all are used.

    The epoch ends then. Only server 0 has them, so that every example is used once, whatever the
    stragglers do. A worker without a ticket is done. A worker holds the batch that it computes and
    up to `ahead` more, which its loader prefetches.
    """

    def __init__(self, count: int, *, ahead: int = 0) -> None:
        self.ahead = ahead
        self.free = list(range(count))
        self.held: defaultdict[int, deque[int]] = defaultdict(deque)
        """Tickets by worker, in the order in which it computes them."""

    def issue(self, worker: int) -> list[int]:
        """Issue the next free tickets (batches) to a worker, up to its limit; return them."""
        issued = []
        while self.free and len(self.held[worker]) <= self.ahead:
            issued.append(heapq.heappop(self.free))
            self.held[worker].append(issued[-1])
        return issued

    def apply_effects(self, effects: PushEffects) -> None:
        """Remove the tickets of applied pushes; free those of pushes that will be dropped.

        A worker whose next push will be dropped has no ticket to free if it is done with the epoch.
        """
        for worker in effects.applied:
            self.held[worker].popleft()
        for worker in effects.dropped_next:
            if self.held[worker]:
                heapq.heappush(self.free, self.held[worker].popleft())

    def give_back(self, worker: int) -> None:
        """Free all tickets (batches) of a worker that will not push their gradients."""
        for ticket in self.held.pop(worker, ()):
            heapq.heappush(self.free, ticket)

    @property
    def left(self) -> int:
        """Number of tickets (batches) that no applied push has used yet."""
        return len(self.free) + sum(map(len, self.held.values()))
