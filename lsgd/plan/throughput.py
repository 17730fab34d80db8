"""The throughput of each strategy on a cluster, simulated in virtual time without tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsgd.plan.allreduce import NetworkLink, ring
from lsgd.recipe.strategies import StrategySettings, VirtualCluster
from lsgd.strategy.clock import Timeline, simulate, step_seconds
from lsgd.strategy.gate import Tickets
from lsgd.strategy.placement import place
from lsgd.strategy.virtual import make_gates, server_loads

STEPS = 40
"""The default number of simulated steps of each worker."""


@dataclass(frozen=True)
class StrategyThroughput:
    """The simulated throughput and step times of a strategy, away from an epoch's ends."""

    batches_per_second: float
    """The number of applied batches of n examples per second."""
    seconds: NDArray[np.float64]
    """The seconds of single steps.
    They are from update to update where workers wait for each other, or else from push to push of
    each worker."""

    def quantile(self, share: float) -> float:
        """Return a quantile of the simulated seconds of a step; `share` is from 0 to 1."""
        return float(np.quantile(self.seconds, share))


def simulate_throughput(
    cluster: VirtualCluster,
    strategy: StrategySettings,
    sizes: Sequence[int],
    workers: int,
    *,
    itemsize: int = 4,
    gradient_itemsize: int | None = None,
    seed: int = 0,
    steps: int = STEPS,
) -> StrategyThroughput:
    """Simulate a strategy's throughput with `workers` workers and these parameter sizes.

    An all-reduce is a ring over the workers' network that begins when the slowest worker has
    computed; in half duplex it has half the bandwidth. Servers are simulated by
    lsgd.strategy.clock. Parameters have `itemsize` bytes each, and gradients on the wire too unless
    `gradient_itemsize` is given.
    """
    on_wire = gradient_itemsize or itemsize
    if strategy.name == "allreduce":
        return _allreduce(cluster, sum(sizes) * on_wire, workers, seed=seed, steps=steps)
    slices = place(sizes, strategy.servers, strategy.placement)
    waits, local_steps = strategy.name in ("sync", "backup"), strategy.batches_per_push
    tickets = steps * (strategy.update_workers(workers) if waits else workers)
    timeline = simulate(
        cluster,
        make_gates(strategy, workers, tickets),
        Tickets(tickets),
        server_loads(slices, itemsize),
        workers=workers,
        colocated=strategy.topology == "colocated",
        seed=seed,
        epoch=0,
        steps=lambda _: local_steps,
        push_size=on_wire / itemsize,
    )
    begin, end = len(timeline.updates) // 10, len(timeline.updates) * 9 // 10
    times = np.array(timeline.updates)
    batches = (end - begin) * strategy.update_workers(workers) * local_steps
    seconds = np.diff(times[begin : end + 1]) if waits else _of_each(timeline, begin, end)
    return StrategyThroughput(batches / float(times[end] - times[begin]), seconds)


def _allreduce(
    cluster: VirtualCluster, size: float, workers: int, *, seed: int, steps: int
) -> StrategyThroughput:
    drawn = step_seconds(cluster, workers=workers, seed=seed, epoch=0, steps=range(steps))
    bandwidth = cluster.worker_gbits * 1e9 / 8 / (1 if cluster.duplex else 2)
    link = NetworkLink((cluster.latency_us + cluster.overhead_us) / 1e6, bandwidth)
    seconds: NDArray[np.float64] = drawn.max(axis=0) + ring(size, workers, link).seconds
    return StrategyThroughput(workers / float(seconds.mean()), seconds)


def _of_each(timeline: Timeline, begin: int, end: int) -> NDArray[np.float64]:
    """Return the seconds between each worker's successive pushes, for pushes `begin` to `end`."""
    pushes = timeline.order[0][timeline.order[0] >= 0][begin : end + 1]
    times = np.array(timeline.updates[begin : end + 1])
    return np.concatenate([np.diff(times[pushes == worker]) for worker in np.unique(pushes)])
