"""Network of a cluster in virtual time, in which messages share the link of each machine fairly."""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from lsgd.recipe.strategies import VirtualCluster


@dataclass(slots=True)
class Transfer:
    """Simulated message with parameters or a gradient between a server and a worker."""

    arrive: Callable[[float, int, int], None]
    """Handler of the arrival, called with the time, the server and the worker."""
    server: int
    worker: int
    links: int = 2
    """Number of links that the message still has to pass."""


class SharedLink:
    """Simulated network link of a machine, which bundles of messages share fairly.

    It is for one direction or both. Each of n bundles gets one n-th. `progress` is the work
    that an endless bundle would have done. A bundle ends at the progress at which it joins plus its
    own work, so this is known at once, though the time is not.
    """

    def __init__(self) -> None:
        self.bundles: list[tuple[float, int, list[Transfer]]] = []
        """Heap of the bundles under way, as (progress at the end, number, messages)."""
        self.number = count()
        self.progress = self.time = 0.0
        self.due = math.inf
        """Time at which the first bundle ends, if no other joins."""
        self.watched = math.inf
        """Time of the earliest scheduled event of this link."""

    def add(self, now: float, work: float, messages: list[Transfer]) -> None:
        """Start sending messages together, which would take `work` seconds on an idle link."""
        if self.bundles:
            self.progress += (now - self.time) / len(self.bundles)
        else:
            self.progress = 0.0  # small floats are more exact
        self.time = now
        heapq.heappush(self.bundles, (self.progress + work, next(self.number), messages))
        self._set_due()

    def end(self) -> list[Transfer]:
        """Advance the link to its due time; remove and return the messages that end then."""
        self.time, self.progress = self.due, self.bundles[0][0]
        ended: list[Transfer] = []
        while self.bundles and self.bundles[0][0] <= self.progress:
            ended += heapq.heappop(self.bundles)[2]
        self._set_due()
        return ended

    def _set_due(self) -> None:
        self.due = math.inf
        if self.bundles:
            # By rounding, the first bundle may end slightly before another joins.
            left = max(0.0, self.bundles[0][0] - self.progress)
            self.due = self.time + left * len(self.bundles)


class Network:
    """Simulated network of a cluster: the links of all machines, and the time of messages."""

    def __init__(
        self, cluster: VirtualCluster, loads: Sequence[float], workers: int, *, colocated: bool
    ) -> None:
        self.colocated, self.loads, self.latency = colocated, loads, cluster.latency_us / 1e6
        self.worker_rate = cluster.worker_gbits * 1e9 / 8
        rate = self.worker_rate if colocated else cluster.server_gbits * 1e9 / 8
        self.work = [load / rate + cluster.overhead_us / 1e6 for load in loads]
        """Seconds that a message to or from each server takes on its idle link."""
        machines = [self._machine(cluster) for _ in range(workers)]
        servers = machines if colocated else [self._machine(cluster) for _ in loads]
        self.worker_out, self.worker_in = zip(*machines, strict=True)
        self.server_out, self.server_in = zip(*servers, strict=True)
        self.messages = [0] * len(loads)

    def remote(self, worker: int) -> list[int]:
        """Return the servers that are on other machines than this worker."""
        return [s for s in range(len(self.loads)) if not (self.colocated and s == worker)]

    def _machine(self, cluster: VirtualCluster) -> tuple[SharedLink, SharedLink]:
        out = SharedLink()
        return out, SharedLink() if cluster.duplex else out
