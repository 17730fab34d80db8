"""The network bandwidth that a run needs."""

from collections.abc import Callable
from dataclasses import replace

from lsgd.plan.allreduce import least_transfer
from lsgd.plan.step import Machine
from lsgd.recipe import Recipe

EXPOSED = 0.01
"""The share of a step that may be spent waiting for sums where the network is fast enough."""
SLOWEST, FASTEST = 1e-3, 1e6
"""Bounds of the search for a bandwidth, in Gbit/s."""


def least_needed(size: float, servers: int, backward: float) -> float:
    """Gbit/s that carry the bytes of an all-reduce during a backward pass, latency left out.

    The paper's estimate (section 4.3), which is that of many servers:
    >>> round(least_needed(100e6, 10**6, 0.125), 1)
    12.8
    """
    return least_transfer(size, servers, 1.0) * 8 / 1e9 / backward


def bisect(rises: Callable[[float], float], target: float, *, high: float) -> float:
    """The number from 0 to `high` at which a function that rises or stays has the value `target`.

    Raises ValueError if the target is not between the values at 0 and at `high`.
    """
    low = 0.0
    if not rises(low) <= target <= rises(high):
        raise ValueError(f"{target} is not between {rises(low)} and {rises(high)}")
    # The search ends where no float lies between the bounds.
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if rises(middle) < target else (low, middle)
    return high


def needed(machine: Machine, recipe: Recipe, gpus: int) -> float | None:
    """Gbit/s per server with which a step waits 1 % of its time for sums.

    None if no bandwidth is enough, as latencies alone take more than that.
    """

    def waiting(gbits: float) -> float:
        hardware = machine.hardware.with_value("network_bandwidth", gbits, "")
        step = replace(machine, hardware=hardware).step(recipe, gpus)
        return (step.latency + step.bandwidth) / step.seconds

    if waiting(FASTEST) > EXPOSED:
        return None
    if waiting(SLOWEST) <= EXPOSED:
        return SLOWEST
    # bisect takes a rising function; the wait rises with the inverse of the bandwidth.
    return 1 / bisect(
        lambda inverse: waiting(min(FASTEST, 1 / inverse) if inverse else FASTEST),
        EXPOSED,
        high=1 / SLOWEST,
    )
