"""Virtual time: when workers compute and messages arrive in a cluster, which gives an order.

No tensor is needed, since timing never depends on what is computed. An event is a computation that
ends, a message that has left a machine's link, or one that arrives; the next in time is handled
until there is none, and of two at one time the one that was planned first. Every number comes from
a counter of philox or from adding, multiplying and dividing, so a timeline is the same everywhere.
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

from lsgd.recipe.strategies import Cluster
from lsgd.rules import philox
from lsgd.strategy.gate import Barrier, Gate, Tickets
from lsgd.strategy.network import Network, SharedLink, Transfer
from lsgd.strategy.order import Order

SECONDS = 4
"""The last word of the counter keeps these draws apart from those of sampling and augmentation."""
BLOCK = 64
"""The number of steps of all workers whose seconds are drawn at once."""


@dataclass(frozen=True)
class Timeline:
    """An epoch of a cluster in virtual time; its times are in seconds since the epoch began."""

    order: Order
    """What the servers handled in turn, a row for each gate."""
    updates: list[float]
    """When server 0 made each of its updates."""
    waits: list[float]
    """For each push that was applied, in that order: the seconds from the end of its computation
    until server 0 handled it."""
    sent: list[float]
    """The bytes that each server got and gave over the network."""
    seconds: float
    """When nothing was under way any more."""


def simulate(
    cluster: Cluster,
    gates: Sequence[Gate],
    tickets: Tickets,
    loads: Sequence[float],
    *,
    workers: int,
    colocated: bool,
    seed: int,
    epoch: int,
    steps: Callable[[int], int] = lambda ticket: 1,
) -> Timeline:
    """Run an epoch whose workers have all been released at time 0, until the tickets are used.

    `loads` has the bytes of each server's parameters, of which a push and a reply have as many.
    Either each server has a gate, or there is one Barrier, that of server 0. The others follow it
    then: which pushes make an update and who is released reaches them one latency later, so all of
    them make the same updates. Gates and tickets are used up. `steps` says how many gradients a
    worker computes with a ticket before it pushes.
    """
    assert len(gates) == len(loads) or (isinstance(gates[0], Barrier) and len(gates) == 1)
    network = Network(cluster, loads, workers, colocated=colocated)
    draws = _Draws(cluster, workers, seed=seed, epoch=epoch)
    return _Epoch(network, draws, gates, tickets, steps).run()


def step_seconds(
    cluster: Cluster, *, workers: int, seed: int, epoch: int, steps: range
) -> NDArray[np.float64]:
    """The seconds of these steps of an epoch, numbered for each worker; shape (workers, steps).

    They are whole nanoseconds: the last bit of a machine's exp or log must not decide who is first.
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
    """The seconds of every worker's next step."""

    def __init__(self, cluster: Cluster, workers: int, *, seed: int, epoch: int) -> None:
        self.cluster, self.seed, self.epoch = cluster, seed, epoch
        self.drawn: list[list[float]] = [[] for _ in range(workers)]
        self.used = [0] * workers

    def next(self, worker: int) -> float:
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
"""Of server 0 to those that follow it: which pushes make an update, each as its worker and how many
that has made, and who is released."""


class _Epoch:
    """The events of an epoch, and what each of them makes happen."""

    def __init__(
        self,
        network: Network,
        draws: _Draws,
        gates: Sequence[Gate],
        tickets: Tickets,
        steps: Callable[[int], int],
    ) -> None:
        self.network, self.draws, self.gates, self.tickets = network, draws, gates, tickets
        self.steps = steps
        workers, self.servers = len(network.worker_in), range(len(network.loads))
        self.events: list[tuple[float, int, Callable[..., None], Any, Any]] = []
        self.number = count()
        self.remote = [network.remote(worker) for worker in range(workers)]
        self.bundle = [sum(network.loads[s] for s in remote) for remote in self.remote]
        self.holds = [0] * workers
        """The gradients that each worker computes for its next push; 0 without a ticket."""
        self.replies = [0] * workers
        """How many servers have answered each worker's last push."""
        self.computed, self.wait = [0.0] * workers, [0.0] * workers
        self.handled = [[0] * workers for _ in self.servers]
        """The number of pushes of each worker that have come to each server."""
        self.words: list[deque[_Word]] = [deque() for _ in self.servers]
        """What server 0 has said and a follower has not done yet."""
        self.order: list[list[int]] = [[] for _ in gates]
        self.updates: list[float] = []
        self.waits: list[float] = []

    def run(self) -> Timeline:
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
        # Who joins makes the others later. It is enough to notice that when they should have ended.
        if link.due < link.watched:
            link.watched = link.due
            self._plan(link.due, self._look, link, None)

    def _look(self, now: float, link: SharedLink, _: None) -> None:
        if now != link.watched:
            return  # somebody has looked before, since another was to end first
        link.watched = math.inf
        if now == link.due:
            for message in link.end():
                message.links -= 1
                if not message.links:
                    arrival = now + self.network.latency
                    self._plan(arrival, message.arrive, message.server, message.worker)
        self._watch(link)

    def _release(self, now: float, server: int, workers: Iterable[int]) -> None:
        """The parameters of this moment begin their way to these workers."""
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
        """A worker that has the parameters of all servers computes, or leaves without a ticket."""
        self.replies[worker] += 1
        if self.replies[worker] < len(self.servers):
            return
        self.replies[worker] = 0
        if gradients := self.holds[worker]:
            seconds = sum(self.draws.next(worker) for _ in range(gradients))
            self._plan(now + seconds, self._push, worker, None)
        elif not isinstance(self.gates[0], Barrier):  # which waits for no ticket that is not there
            for server in self.servers:
                self._plan(now + self.network.latency, self._leave, server, worker)

    def _push(self, now: float, worker: int, _: None) -> None:
        """The slices of a gradient leave together, each for its server."""
        network, remote = self.network, self.remote[worker]
        self.computed[worker] = now
        if len(remote) < len(self.servers):
            self._plan(now, self._handle, worker, worker)
        messages = [Transfer(self._handle, server, worker) for server in remote]
        for message in messages:
            network.messages[message.server] += 1
            work = network.work[message.server]
            self._send(now, network.server_in[message.server], work, [message])
        if messages:
            work = self.bundle[worker] / network.worker_rate
            self._send(now, network.worker_out[worker], work, messages)

    def _handle(self, now: float, server: int, worker: int) -> None:
        self.handled[server][worker] += 1
        if server >= len(self.gates):
            self._follow(now, server)
            return
        self.order[server].append(worker)
        effects = self.gates[server].push(worker)
        if server == 0:
            self.wait[worker] = now - self.computed[worker]
            self.tickets.settle(effects)
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
        self.words[server].append(word)
        self._follow(now, server)

    def _follow(self, now: float, server: int) -> None:
        """Do in turn what server 0 has said, as far as the pushes for it have come."""
        words, handled = self.words[server], self.handled[server]
        while words and all(handled[worker] >= number for worker, number in words[0][0]):
            self._release(now, server, words.popleft()[1])
