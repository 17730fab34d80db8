"""A model of the overlap of all-reduces with the backward pass."""

from collections.abc import Sequence

from lsgd.plan.allreduce import Cost


def finish_time(ready: Sequence[float], costs: Sequence[Cost], *, concurrent: int = 1) -> float:
    """Return the time in seconds at which the last of several all-reduces finishes.

    All-reduce i is ready at `ready[i]`. All start in the given order, since every process must
    start them in the same order, and at most `concurrent` are in flight at once. The wire carries
    one at a time; only the latencies of several all-reduces overlap.
    """
    done: list[float] = []
    for i, (earliest, cost) in enumerate(zip(ready, costs, strict=True)):
        start = max(earliest, done[i - concurrent]) if i >= concurrent else earliest
        wire_is_free = done[-1] if done else 0.0
        done.append(max(start + cost.latency, wire_is_free) + cost.transfer)
    return done[-1]


def exposed_cost(
    ready: Sequence[float], costs: Sequence[Cost], backward: float, *, concurrent: int = 1
) -> Cost:
    """Return the time of all-reduces that a backward pass of `backward` seconds does not hide.

    `ready` are shares of that pass. Exposed latency is what would remain on a wire of infinite
    bandwidth; exposed transfer is the rest.
    """
    ready_at = [share * backward for share in ready]
    whole = finish_time(ready_at, costs, concurrent=concurrent) - backward
    unhindered = [Cost(cost.latency, 0.0) for cost in costs]
    latency = finish_time(ready_at, unhindered, concurrent=concurrent) - backward
    return Cost(max(0.0, latency), max(0.0, whole) - max(0.0, latency))
