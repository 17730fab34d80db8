from dataclasses import replace

import numpy as np
import pytest

from lsgd.plan.throughput import simulate_throughput
from lsgd.recipe.strategies import StrategySettings, VirtualCluster
from lsgd.strategy.clock import step_seconds

EVEN = VirtualCluster(step=1.0, spread=0.0, server_gbits=0.008, worker_gbits=0.016, latency_us=1e4)
"""A server's network takes a second for 1 MB, and a worker's half of it."""
SIZES = [100_000, 150_000]
"""1 MB of float32."""


def test_an_allreduce_waits_for_the_slowest_and_is_a_ring_then() -> None:
    ring = 2 * 3 * (0.01 + 0.5 / 4)
    steady = simulate_throughput(EVEN, StrategySettings(), SIZES, 4)
    assert steady.seconds == pytest.approx([1 + ring] * len(steady.seconds))
    assert steady.batches_per_second == pytest.approx(4 / (1 + ring))
    half = simulate_throughput(replace(EVEN, duplex=False), StrategySettings(), SIZES, 4)
    assert half.seconds[0] == pytest.approx(1 + 2 * 3 * (0.01 + 1 / 4))
    uneven = replace(EVEN, spread=0.5)
    drawn = step_seconds(uneven, workers=4, seed=3, epoch=0, steps=range(40))
    slowest = simulate_throughput(uneven, StrategySettings(), SIZES, 4, seed=3).seconds
    assert slowest == pytest.approx(drawn.max(axis=0) + ring)


def test_one_worker_alone_has_nothing_to_sum() -> None:
    assert simulate_throughput(
        EVEN, StrategySettings(), SIZES, 1
    ).batches_per_second == pytest.approx(1)


def test_a_synchronous_step_is_the_time_between_updates() -> None:
    """Three pushes share a server's link, and three replies: 3 s and a latency each."""
    paced = simulate_throughput(EVEN, StrategySettings("sync"), SIZES, 3)
    assert paced.seconds == pytest.approx([1 + 2 * 3.01] * len(paced.seconds))
    assert paced.batches_per_second == pytest.approx(3 / (1 + 2 * 3.01))
    doubled = simulate_throughput(EVEN, StrategySettings("sync"), SIZES, 3, itemsize=8)
    assert doubled.seconds[0] == pytest.approx(1 + 2 * 6.01)


def test_compressed_gradients_are_half_the_bytes_of_an_allreduce_and_of_pushes() -> None:
    """A reply has parameters, in full."""

    def seconds(strategy: StrategySettings) -> float:
        paced = simulate_throughput(EVEN, strategy, SIZES, 3, gradient_itemsize=2)
        return float(paced.seconds[0])

    assert seconds(StrategySettings()) == pytest.approx(1 + 2 * 2 * (0.01 + 0.25 / 3))
    assert seconds(StrategySettings("sync")) == pytest.approx(1 + 1.51 + 3.01)


def test_backup_workers_are_not_counted_as_throughput() -> None:
    fast = replace(EVEN, server_gbits=1e9, worker_gbits=1e9, latency_us=0, speeds=[1, 1, 1, 50])
    paced = simulate_throughput(fast, StrategySettings("backup", backup=1), SIZES, 4)
    assert paced.batches_per_second == pytest.approx(3, rel=1e-3)


def test_an_asynchronous_step_is_that_of_each_worker() -> None:
    fast = replace(EVEN, server_gbits=1e9, worker_gbits=1e9, latency_us=0, speeds=[1, 2])
    paced = simulate_throughput(fast, StrategySettings("async"), SIZES, 2)
    assert sorted({*np.rint(paced.seconds)}) == [1, 2]
    assert paced.batches_per_second == pytest.approx(1.5, rel=0.05)
    held = simulate_throughput(fast, StrategySettings("bounded", slack=0), SIZES, 2)
    assert held.seconds == pytest.approx([2] * len(held.seconds))


def test_colocated_servers_need_no_network_for_their_own_worker() -> None:
    paced = simulate_throughput(EVEN, StrategySettings("async", topology="colocated"), SIZES, 1)
    assert paced.batches_per_second == pytest.approx(1)


def test_local_steps_are_batches_between_two_pushes() -> None:
    """Of which each takes a second, and a push and its reply 1.01 s each."""
    paced = simulate_throughput(EVEN, StrategySettings("async", local_steps=8), SIZES, 1)
    assert paced.seconds == pytest.approx([8 + 2 * 1.01] * len(paced.seconds))
    assert paced.batches_per_second == pytest.approx(8 / (8 + 2 * 1.01))
