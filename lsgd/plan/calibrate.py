"""The two constants that are fitted to what the paper reports, and nothing else is.

Latency follows from its ring being a third as fast as halving and doubling on 32 servers, the
spread of the GPUs' times from the growth of a step from 8 to 352 GPUs (figure 7).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lsgd.plan.allreduce import Link, halving_doubling, ring
from lsgd.plan.step import Machine
from lsgd.recipe import Recipe


def bisect(rises: Callable[[float], float], target: float, *, high: float) -> float:
    """Where, from 0 to `high`, a function that rises or stays takes the value `target`.

    Raises ValueError if it does not there.
    """
    low = 0.0
    if not rises(low) <= target <= rises(high):
        raise ValueError(f"{target} is not between {rises(low)} and {rises(high)}")
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if rises(middle) < target else (low, middle)
    return high


def ring_ratio(sizes: Sequence[float], servers: int, link: Link) -> float:
    """How many times as long a ring takes between servers as halving and doubling.

    For sums of these bytes, one after the other, without a backward pass beside them.
    """
    by_ring = sum(ring(size, servers, link).seconds for size in sizes)
    return by_ring / sum(halving_doubling(size, servers, link).seconds for size in sizes)


def latency(sizes: Sequence[float], bandwidth: float, *, servers: int, ratio: float) -> float:
    """Seconds of a message at which a ring takes `ratio` times as long as halving and doubling."""
    return bisect(lambda alpha: ring_ratio(sizes, servers, Link(alpha, bandwidth)), ratio, high=1.0)


def growth(machine: Machine, recipe: Recipe, few: int, many: int) -> float:
    """How many times as long a step takes on many GPUs as on few, with one worker on each."""
    on_few, on_many = (
        machine.step(replace(recipe, workers=gpus), gpus).seconds for gpus in (few, many)
    )
    return on_many / on_few


def spread(machine: Machine, recipe: Recipe, few: int, many: int, target: float) -> float:
    """The spread of the GPUs' times at which a step grows so much."""

    def with_spread(value: float) -> float:
        hardware = machine.hardware.with_value("spread", value, "")
        return growth(replace(machine, hardware=hardware), recipe, few, many)

    return bisect(with_spread, target, high=1.0)
