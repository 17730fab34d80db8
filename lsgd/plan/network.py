"""The network bandwidth that a run needs."""

from collections.abc import Callable
from dataclasses import replace

from lsgd.plan.allreduce import least_transfer
from lsgd.plan.step import ModelledCluster
from lsgd.recipe import Recipe

MAX_WAIT_SHARE = 0.01
"""The largest share of a step spent waiting for all-reduces on a sufficient network."""
SLOWEST, FASTEST = 1e-3, 1e6
"""Bounds of the search for a bandwidth, in Gbit/s."""


def min_required_gbits(size: float, servers: int, backward: float) -> float:
    """Return the bandwidth, in Gbit/s, that moves an all-reduce's bytes in a backward pass.

    Latency is ignored. The paper's estimate (section 4.3) is that of many servers:

    >>> round(min_required_gbits(100e6, 10**6, 0.125), 1)
    12.8
    """
    return least_transfer(size, servers, 1.0) * 8 / 1e9 / backward


def bisect(rises: Callable[[float], float], target: float, *, high: float) -> float:
    """Return the number from 0 to `high` at which a nondecreasing function has the value `target`.

    Raises ValueError if the target is not between the values at 0 and at `high`.
    """
    low = 0.0
    if not rises(low) <= target <= rises(high):
        raise ValueError(f"{target} is not between {rises(low)} and {rises(high)}")
    # The search ends where no float lies between the bounds.
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if rises(middle) < target else (low, middle)
    return high


def required_gbits(machine: ModelledCluster, recipe: Recipe, gpus: int) -> float | None:
    """Return the Gbit/s per server at which a training step waits 1 % for all-reduces.

    Returns None if latencies alone take more than that.
    """

    def waiting(gbits: float) -> float:
        hardware = machine.hardware.with_value("network_bandwidth", gbits, "")
        step = replace(machine, hardware=hardware).step(recipe, gpus)
        return (step.latency + step.bandwidth) / step.seconds

    if waiting(FASTEST) > MAX_WAIT_SHARE:
        return None
    if waiting(SLOWEST) <= MAX_WAIT_SHARE:
        return SLOWEST
    # bisect takes a rising function; the wait rises with the inverse of the bandwidth.
    return 1 / bisect(
        lambda inverse: waiting(min(FASTEST, 1 / inverse) if inverse else FASTEST),
        MAX_WAIT_SHARE,
        high=1 / SLOWEST,
    )
