"""Simulated clock of a cluster, which yields the order in which servers handle pushes.

The simulation needs no tensors, since timing never depends on what is computed. An event is the end
of a computation, the end of a message on a machine's link, or the arrival of a message. The next
event in time is handled until none is left; of two events at one time the one planned first comes
first. Every number comes from a Philox counter or from adding, multiplying and dividing, so a
timeline is the same on every machine.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe.strategies import VirtualCluster
from lsgd.rules import philox
from lsgd.strategy.gate import AdmissionGate, BarrierGate, Tickets
from lsgd.strategy.network import Network, SharedLink, Transfer
from lsgd.strategy.order import PushOrder

SECONDS = 4
"""Last uint32 of the Philox counter, which separates these draws from sampling and augmentation."""
BLOCK = 64
"""Number of steps whose seconds are drawn at once for all workers."""


@dataclass(frozen=True)
class Timeline:
    """Simulated timeline of one epoch: order of pushes, times of updates, waits, traffic.

    Times are virtual, in seconds since the start of the epoch.
    """

    order: PushOrder
    """Events that the servers handled in turn, one row for each gate."""
    updates: list[float]
    """Times of the updates of server 0."""
    waits: list[float]
    """Seconds from the end of each applied push's computation until server 0 handled it."""
    sent: list[float]
    """Bytes that each server received and sent over the network."""
    seconds: float
    """Time at which no event was left."""


def simulate(
    cluster: VirtualCluster,
    gates: Sequence[AdmissionGate],
    tickets: Tickets,
    loads: Sequence[float],
    *,
    workers: int,
    colocated: bool,
    seed: int,
    epoch: int,
    steps: Callable[[int], int] = lambda ticket: 1,
    push_size: float = 1.0,
) -> Timeline:
    """Simulate the timing of an epoch on a cluster of workers and servers; return its timeline.

    The epoch begins with all workers' start at 0 and ends when no batch is left. `loads` has the
    bytes of each server's parameters, which are also the bytes of a reply, and of a push if
    `push_size`, a push's bytes relative to a reply's, is 1; `sent` counts both as replies. Either
    each server has a gate, or there is a single BarrierGate, that of server 0. The other servers
    then follow it: its decisions (which pushes make an update, and who is released) reach them one
    latency later, so all of them make the same updates. Gates and tickets are used up. `steps`
    returns the number of gradients that a worker computes with a ticket before it pushes.
    """
    assert len(gates) == len(loads) or (isinstance(gates[0], BarrierGate) and len(gates) == 1)
    network = Network(cluster, loads, workers, colocated=colocated)
    draws = _Draws(cluster, workers, seed=seed, epoch=epoch)
    return _Epoch(network, draws, gates, tickets, steps, push_size).run()


def step_seconds(
    cluster: VirtualCluster, *, workers: int, seed: int, epoch: int, steps: range
) -> NDArray[np.float64]:
    """Return the simulated seconds that each worker takes for these training steps of an epoch.

    The shape is (workers, steps). Times are whole nanoseconds, so that the last bit of a machine's
    exp or log cannot decide the order.
    """
    counter = (np.array(steps), np.arange(workers)[:, None], epoch, SECONDS + (cluster.seed << 8))
    radius, angle, slow, _ = philox.uniforms(counter, key=seed)
    # Box and Muller 1958; 1 - u is never 0.
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    speeds = np.array([[cluster.speed(worker)] for worker in range(workers)])
    seconds = cluster.step * np.exp(cluster.spread * normal) * speeds
    held_up: NDArray[np.float64] = seconds + (slow < cluster.slow_share) * cluster.slow_by
    return np.rint(held_up * 1e9) / 1e9


class _Draws:
    """Source of the simulated step durations of all workers, drawn in blocks."""

    def __init__(self, cluster: VirtualCluster, workers: int, *, seed: int, epoch: int) -> None:
        self.cluster, self.seed, self.epoch = cluster, seed, epoch
        self.drawn: list[list[float]] = [[] for _ in range(workers)]
        self.used = [0] * workers

    def next(self, worker: int) -> float:
        """Return the simulated seconds that this worker's next step takes."""
        step = self.used[worker]
        if step == len(self.drawn[worker]):
            block = step_seconds(
                self.cluster,
                workers=len(self.drawn),
                seed=self.seed,
                epoch=self.epoch,
                steps=range(step, step + BLOCK),
            )
            for drawn, seconds in zip(self.drawn, block.tolist(), strict=True):
                drawn += seconds
        self.used[worker] = step + 1
        return self.drawn[worker][step]


_Word = tuple[list[tuple[int, int]], tuple[int, ...]]
"""Message of server 0 to its followers: the pushes of an update, and the released workers.

Each push is a worker and that worker's number of pushes so far.
"""


class _Epoch:
    """Simulation of an epoch's timing: a queue of events, with a handler for each type of event."""

    def __init__(
        self,
        network: Network,
        draws: _Draws,
        gates: Sequence[AdmissionGate],
        tickets: Tickets,
        steps: Callable[[int], int],
        push_size: float,
    ) -> None:
        self.network, self.draws, self.gates, self.tickets = network, draws, gates, tickets
        self.steps, self.push_size = steps, push_size
        workers, self.servers = len(network.worker_in), range(len(network.loads))
        self.events: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self.number = count()
        self.remote = [network.remote(worker) for worker in range(workers)]
        self.bundle = [sum(network.loads[s] for s in remote) for remote in self.remote]
        self.holds = [0] * workers
        """Number of gradients that each worker computes for its next push; 0 without a ticket."""
        self.replies = [0] * workers
        """Number of servers that have answered each worker's last push."""
        self.computed, self.wait = [0.0] * workers, [0.0] * workers
        self.handled = [[0] * workers for _ in self.servers]
        """Number of pushes of each worker that have arrived at each server."""
        self.words: list[deque[_Word]] = [deque() for _ in self.servers]
        """Messages of server 0 that each follower has received but not applied."""
        self.order: list[list[int]] = [[] for _ in gates]
        self.updates: list[float] = []
        self.waits: list[float] = []

    def run(self) -> Timeline:
        """Simulate all events of the epoch in the order of their times, and return its timeline."""
        for server in self.servers:
            self._release(0.0, server, range(len(self.holds)))
        now = 0.0
        while self.events:
            now, _, handle, first, second = heapq.heappop(self.events)
            handle(now, first, second)
        loads, messages = self.network.loads, self.network.messages
        sent = [number * load for number, load in zip(messages, loads, strict=True)]
        order = [np.array(row, np.int16) for row in self.order]
        return Timeline(order, self.updates, self.waits, sent, now)

    def _plan(self, time: float, handle: Callable[..., None], first: Any, second: Any) -> None:
        heapq.heappush(self.events, (time, next(self.number), handle, first, second))

    def _send(self, now: float, link: SharedLink, work: float, messages: list[Transfer]) -> None:
        link.add(now, work, messages)
        self._watch(link)

    def _watch(self, link: SharedLink) -> None:
        # A message that joins delays the others. They are rescheduled when they were due.
        if link.due < link.watched:
            link.watched = link.due
            self._plan(link.due, self._look, link, None)

    def _look(self, now: float, link: SharedLink, _: None) -> None:
        """Handle the scheduled event of a network link, at which messages may have ended."""
        if now != link.watched:
            return  # superseded by an earlier event for a message that ends first
        link.watched = math.inf
        if now == link.due:
            for message in link.end():
                message.links -= 1
                if not message.links:
                    arrival = now + self.network.latency
                    self._plan(arrival, message.arrive, message.server, message.worker)
        self._watch(link)

    def _release(self, now: float, server: int, workers: Iterable[int]) -> None:
        """Simulate the start of sending a server's current parameters to these workers."""
        network = self.network
        for worker in workers:
            if server == 0:
                self.holds[worker] = sum(map(self.steps, self.tickets.issue(worker)))
            if network.colocated and server == worker:
                self._plan(now, self._read, server, worker)
                continue
            message = Transfer(self._read, server, worker)
            network.messages[server] += 1
            work = network.loads[server] / network.worker_rate
            self._send(now, network.server_out[server], network.work[server], [message])
            self._send(now, network.worker_in[worker], work, [message])

    def _read(self, now: float, _: int, worker: int) -> None:
        """Schedule a worker's push once all parameters are there; without a ticket it leaves."""
        self.replies[worker] += 1
        if self.replies[worker] < len(self.servers):
            return
        self.replies[worker] = 0
        if gradients := self.holds[worker]:
            seconds = sum(self.draws.next(worker) for _ in range(gradients))
            self._plan(now + seconds, self._push, worker, None)
        elif not isinstance(self.gates[0], BarrierGate):  # synchronous servers need no notice
            for server in self.servers:
                self._plan(now + self.network.latency, self._leave, server, worker)

    def _push(self, now: float, worker: int, _: None) -> None:
        """Simulate the start of sending a worker's gradient slices to their servers."""
        network, remote = self.network, self.remote[worker]
        self.computed[worker] = now
        if len(remote) < len(self.servers):
            self._plan(now, self._handle, worker, worker)
        messages = [Transfer(self._handle, server, worker) for server in remote]
        for message in messages:
            network.messages[message.server] += 1
            work = network.work[message.server] * self.push_size
            self._send(now, network.server_in[message.server], work, [message])
        if messages:
            work = self.bundle[worker] / network.worker_rate * self.push_size
            self._send(now, network.worker_out[worker], work, messages)

    def _handle(self, now: float, server: int, worker: int) -> None:
        """Handle the simulated arrival of a worker's push (gradient) at a server."""
        self.handled[server][worker] += 1
        if server >= len(self.gates):
            self._follow(now, server)
            return
        self.order[server].append(worker)
        effects = self.gates[server].push(worker)
        if server == 0:
            self.wait[worker] = now - self.computed[worker]
            self.tickets.apply_effects(effects)
            self.waits += [self.wait[number] for number in effects.applied]
            self.updates += [now] * bool(effects.applied)
        self._release(now, server, effects.released)
        if len(self.gates) < len(self.servers) and (effects.applied or effects.released):
            pushes = [(number, self.handled[0][number]) for number in effects.applied]
            for follower in self.servers[1:]:
                word = (pushes, effects.released)
                self._plan(now + self.network.latency, self._hear, follower, word)

    def _leave(self, now: float, server: int, worker: int) -> None:
        self.order[server].append(-1 - worker)
        self._release(now, server, self.gates[server].leave(worker).released)

    def _hear(self, now: float, server: int, word: _Word) -> None:
        """Handle the simulated arrival of server 0's decision at a server that follows it."""
        self.words[server].append(word)
        self._follow(now, server)

    def _follow(self, now: float, server: int) -> None:
        """Apply server 0's decisions at a follower, as far as their pushes have arrived there."""
        words, handled = self.words[server], self.handled[server]
        while words and all(handled[worker] >= number for worker, number in words[0][0]):
            self._release(now, server, words.popleft()[1])
