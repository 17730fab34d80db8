"""What the backward pass hides, against a clock that ticks."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.plan.allreduce import Cost, exposed_cost, finish_time

Sums = list[tuple[int, int, int]]
"""Of each sum: how long after the one before it is ready, its latency, its transfer; in ticks."""

sums = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12
)
concurrencies = st.integers(1, 5)


def split(sums: Sums) -> tuple[list[float], list[Cost]]:
    ready = [float(at) for at in accumulate(wait for wait, _, _ in sums)]
    return ready, [Cost(latency, transfer) for _, latency, transfer in sums]


def ticking(sums: Sums, concurrent: int) -> int:
    """When the last sum is done, by letting time pass."""
    ready = list(accumulate(wait for wait, _, _ in sums))
    latency = [latency for _, latency, _ in sums]
    transfer = [transfer for _, _, transfer in sums]
    begun: list[int] = []
    done: set[int] = set()
    for now in range(10_000):
        settled = False
        while not settled:
            settled = True
            following = len(begun)
            under_way = following - len(done)
            if following < len(sums) and ready[following] <= now and under_way < concurrent:
                begun.append(following)
                settled = False
            first = next((i for i in begun if i not in done), None)
            if first is not None and latency[first] == 0 and transfer[first] == 0:
                done.add(first)
                settled = False
        if len(done) == len(sums):
            return now
        waiting = [i for i in begun if latency[i] > 0]
        first = next((i for i in begun if i not in done), None)
        if first is not None and latency[first] == 0:
            transfer[first] -= 1
        for i in waiting:
            latency[i] -= 1
    raise AssertionError("it never ends")


@given(sums, concurrencies)
def test_as_a_clock_has_it(sums: Sums, concurrent: int) -> None:
    ready, costs = split(sums)
    assert finish_time(ready, costs, concurrent=concurrent) == ticking(sums, concurrent)


@given(sums, concurrencies)
def test_what_is_exposed_is_what_outlasts_the_backward_pass(sums: Sums, concurrent: int) -> None:
    ready, costs = split(sums)
    backward = ready[-1] or 1.0
    shares = [at / backward for at in ready]
    left = exposed_cost(shares, costs, backward, concurrent=concurrent)
    assert left.latency >= 0
    assert left.transfer >= -1e-9
    outlasts = max(0.0, finish_time(ready, costs, concurrent=concurrent) - backward)
    assert left.seconds == pytest.approx(outlasts, abs=1e-6)


def test_exposed_latency_and_bandwidth_by_hand() -> None:
    """The first sum is hidden; of the last, ready at the end, nothing can be."""
    left = exposed_cost([0.1, 1.0], [Cost(0.2, 0.5), Cost(0.3, 0.4)], 10.0)
    assert left.latency == pytest.approx(0.3)
    assert left.transfer == pytest.approx(0.4)
