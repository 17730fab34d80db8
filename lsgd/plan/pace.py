"""How fast workers come on with each strategy on a cluster, in virtual time without tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsgd.plan.allreduce import Link, ring
from lsgd.recipe.strategies import Cluster, StrategySettings
from lsgd.strategy.clock import Timeline, simulate, step_seconds
from lsgd.strategy.gate import Tickets
from lsgd.strategy.placement import place
from lsgd.strategy.virtual import make_gates, server_loads

STEPS = 40
"""The number of steps of each worker that are looked at, unless more are wanted."""


@dataclass(frozen=True)
class Pace:
    """What a strategy makes of a cluster, without the beginning and the end of an epoch."""

    rate: float
    """The batches of n examples that are applied per second."""
    seconds: NDArray[np.float64]
    """Those of single steps: from update to update where workers wait for each other, and else from
    push to push of each worker."""

    def quantile(self, share: float) -> float:
        """The seconds that this share of the steps does not exceed."""
        return float(np.quantile(self.seconds, share))


def pace(
    cluster: Cluster,
    strategy: StrategySettings,
    sizes: Sequence[int],
    workers: int,
    *,
    itemsize: int = 4,
    seed: int = 0,
    steps: int = STEPS,
) -> Pace:
    """The pace of these workers, whose model has parameters of so many elements.

    An all-reduce is a ring over the workers' network which begins when the slowest of them has
    computed, and in half duplex has half the bandwidth; servers are those of lsgd.strategy.clock.
    """
    if strategy.name == "allreduce":
        return _allreduce(cluster, sum(sizes) * itemsize, workers, seed=seed, steps=steps)
    slices = place(sizes, strategy.servers, strategy.placement)
    waits, local_steps = strategy.name in ("sync", "backup"), strategy.push_steps
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
    )
    begin, end = len(timeline.updates) // 10, len(timeline.updates) * 9 // 10
    times = np.array(timeline.updates)
    batches = (end - begin) * strategy.update_workers(workers) * local_steps
    seconds = np.diff(times[begin : end + 1]) if waits else _of_each(timeline, begin, end)
    return Pace(batches / float(times[end] - times[begin]), seconds)


def _allreduce(cluster: Cluster, size: float, workers: int, *, seed: int, steps: int) -> Pace:
    drawn = step_seconds(cluster, workers=workers, seed=seed, epoch=0, steps=range(steps))
    bandwidth = cluster.worker_gbits * 1e9 / 8 / (1 if cluster.duplex else 2)
    link = Link((cluster.latency_us + cluster.overhead_us) / 1e6, bandwidth)
    seconds: NDArray[np.float64] = drawn.max(axis=0) + ring(size, workers, link).seconds
    return Pace(workers / float(seconds.mean()), seconds)


def _of_each(timeline: Timeline, begin: int, end: int) -> NDArray[np.float64]:
    """The seconds between successive pushes of each worker, among these pushes of all."""
    pushes = timeline.order[0][timeline.order[0] >= 0][begin : end + 1]
    times = np.array(timeline.updates[begin : end + 1])
    return np.concatenate([np.diff(times[pushes == worker]) for worker in np.unique(pushes)])
