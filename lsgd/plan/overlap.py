"""How much of the sums the backward pass hides."""

from collections.abc import Sequence

from lsgd.plan.allreduce import Cost


def finish(ready: Sequence[float], costs: Sequence[Cost], *, concurrent: int = 1) -> float:
    """When the last of several sums is done, in seconds.

    Sum i can start at `ready[i]`. All start in the given order, as every process has to start
    them alike, and at most `concurrent` are under way at once. The wire carries one at a time; what
    several under way do at the same time is to wait for their latencies.
    """
    done: list[float] = []
    for i, (earliest, cost) in enumerate(zip(ready, costs, strict=True)):
        start = max(earliest, done[i - concurrent]) if i >= concurrent else earliest
        wire_is_free = done[-1] if done else 0.0
        done.append(max(start + cost.latency, wire_is_free) + cost.transfer)
    return done[-1]


def exposed(
    ready: Sequence[float], costs: Sequence[Cost], backward: float, *, concurrent: int = 1
) -> Cost:
    """The part of the sums that outlasts a backward pass of `backward` seconds.

    `ready` are shares of that pass. Exposed latency is what would be left on a wire of infinite
    bandwidth, exposed transfer the rest.
    """
    ready_at = [share * backward for share in ready]
    whole = finish(ready_at, costs, concurrent=concurrent) - backward
    unhindered = [Cost(cost.latency, 0.0) for cost in costs]
    latency = finish(ready_at, unhindered, concurrent=concurrent) - backward
    return Cost(max(0.0, latency), max(0.0, whole) - max(0.0, latency))
