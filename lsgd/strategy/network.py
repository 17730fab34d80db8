"""The network of a cluster in virtual time: a link of each machine, shared fairly by all that goes
over it at one time."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from lsgd.recipe.strategies import Cluster


@dataclass(slots=True)
class Transfer:
    """Parameters or a gradient on the way between a server and a worker."""

    arrive: Callable[[float, int, int], None]
    """What happens then, at this time with this server and worker."""
    server: int
    worker: int
    links: int = 2
    """The number of links that it still has to leave."""


class SharedLink:
    """One direction of a machine's network, or both, shared fairly: of n bundles that are under way
    each gets one n-th.

    `progress` is the work that one which never ends would have done. Who joins has still its own
    work to do from there, so where each ends is known at once, though not when.
    """

    def __init__(self) -> None:
        self.bundles: list[tuple[float, int, list[Transfer]]] = []
        """A heap of those under way: the progress at which each ends, its number, its messages."""
        self.number = count()
        self.progress = self.time = 0.0
        self.due = math.inf
        """When the first of them ends, if no other joins."""
        self.watched = math.inf
        """When somebody will look at it."""

    def add(self, now: float, work: float, messages: list[Transfer]) -> None:
        """Messages that leave together join, with the seconds that they would take alone."""
        if self.bundles:
            self.progress += (now - self.time) / len(self.bundles)
        else:
            self.progress = 0.0  # small numbers are the more exact ones
        self.time = now
        heapq.heappush(self.bundles, (self.progress + work, next(self.number), messages))
        self._set_due()

    def end(self) -> list[Transfer]:
        """Take away the messages that end when they are due."""
        self.time, self.progress = self.due, self.bundles[0][0]
        ended: list[Transfer] = []
        while self.bundles and self.bundles[0][0] <= self.progress:
            ended += heapq.heappop(self.bundles)[2]
        self._set_due()
        return ended

    def _set_due(self) -> None:
        self.due = math.inf
        if self.bundles:
            # Rounded, the first may have ended a little before another joined.
            left = max(0.0, self.bundles[0][0] - self.progress)
            self.due = self.time + left * len(self.bundles)


class Network:
    """The links of all machines, and what a message is to them."""

    def __init__(
        self, cluster: Cluster, loads: Sequence[float], workers: int, *, colocated: bool
    ) -> None:
        self.colocated, self.loads, self.latency = colocated, loads, cluster.latency_us / 1e6
        self.worker_rate = cluster.worker_gbits * 1e9 / 8
        rate = self.worker_rate if colocated else cluster.server_gbits * 1e9 / 8
        self.work = [load / rate + cluster.overhead_us / 1e6 for load in loads]
        """The seconds of a message to or from each server, alone on its link."""
        machines = [self._machine(cluster) for _ in range(workers)]
        servers = machines if colocated else [self._machine(cluster) for _ in loads]
        self.worker_out, self.worker_in = zip(*machines, strict=True)
        self.server_out, self.server_in = zip(*servers, strict=True)
        self.messages = [0] * len(loads)

    def remote(self, worker: int) -> list[int]:
        """The servers on other machines than this worker."""
        return [s for s in range(len(self.loads)) if not (self.colocated and s == worker)]

    def _machine(self, cluster: Cluster) -> tuple[SharedLink, SharedLink]:
        out = SharedLink()
        return out, SharedLink() if cluster.duplex else out
