"""The formulas: the paper's own numbers, and what must hold for any sizes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsgd.plan.allreduce import (
    ALGORITHMS,
    Cost,
    GpuServers,
    NetworkLink,
    gloo_ring,
    halving_bytes,
    halving_doubling,
    hierarchical,
    least_transfer,
    reduce_,
    ring,
)

GRADIENT = 4 * 25_557_032
"""Bytes of ResNet-50's."""
FIFTY_GBIT = 50e9 / 8

sizes = st.floats(1, 1e9)
participants = st.integers(1, 5000)
links = st.builds(NetworkLink, st.floats(0, 1e-3), st.floats(1e6, 1e12))
clusters = st.builds(GpuServers, network=links, local=links, host=links, nccl_from=st.just(0.0))
algorithms = st.sampled_from(sorted(ALGORITHMS))
servers = st.integers(1, 600)
gpus = st.integers(1, 16)


@pytest.mark.parametrize(("p", "milliseconds"), [(8, 28.6), (32, 31.7), (44, 32.0)])
def test_lower_bound_of_the_gradient_at_50_gbit(p: int, milliseconds: float) -> None:
    assert 1000 * least_transfer(GRADIENT, p, FIFTY_GBIT) == pytest.approx(milliseconds, abs=0.05)


def test_messages_on_32_servers() -> None:
    """Section 4: 2 (p - 1) steps of the ring, 2 log2 p of halving and doubling."""
    one_second = NetworkLink(1.0, math.inf)
    assert ring(GRADIENT, 32, one_second) == Cost(62, 0)
    assert halving_doubling(GRADIENT, 32, one_second) == Cost(10, 0)


def simulate_gloo(size: float, p: int, link: NetworkLink) -> float:
    """Return the seconds of an all-reduce by the loop of gloo/allreduce.cc, message by message.

    All processes do the same at the same time, so that one stands for its neighbours too.
    """
    segments = (p - 1) * max(2, math.ceil(size / 2**20 / p))
    each = size / (segments / (p - 1)) / p / link.bandwidth
    now = 0.0
    for _ in ("reduce-scatter", "all-gather"):
        wire_is_free = now
        arrivals, departures = list[float](), list[float]()
        for i in range(segments + 2):
            if i >= 2:  # the receive and the send of two iterations ago
                now = max(now, arrivals[i - 2], departures[i - 2])
            if i < segments:
                announced = now + link.latency  # that the neighbour waits for this segment
                wire_is_free = max(announced, wire_is_free) + each
                departures.append(wire_is_free)
                arrivals.append(wire_is_free + link.latency)
    return now


@given(sizes, participants.filter(lambda p: 1 < p < 70), links)
def test_gloo_takes_as_long_as_its_messages(size: float, p: int, link: NetworkLink) -> None:
    assert gloo_ring(size, p, link).seconds == pytest.approx(simulate_gloo(size, p, link), rel=1e-9)


@pytest.mark.parametrize(("p", "messages"), [(2, 4), (4, 12), (8, 28), (512, 2044)])
def test_gloo_announces_each_message(p: int, messages: int) -> None:
    """Measured over 2, 4 and 8 nodes: 4.1, 12.3 and 27.4 latencies (results/2026-11-27-nodes)."""
    assert gloo_ring(1000, p, NetworkLink(1.0, math.inf)) == Cost(messages, 0)


def test_gloo_hides_the_latencies_of_long_segments() -> None:
    """Two phases of 6 segments, whose first is announced and whose last one travels."""
    assert gloo_ring(8 * 10, 4, NetworkLink(1.0, 1.0)).seconds == 2 * (6 * 10 + 2)


def test_bytes_of_binary_blocks_by_hand() -> None:
    """3 = 2 + 1: the one server sends all its bytes to the pair, which has halved by then."""
    assert halving_bytes(3) == 1.0
    # 6 = 4 + 2: the pair has half its bytes done, sends the other half at 1.0; four had 3/4.
    assert halving_bytes(6) == 1.0
    # 44 = 32 + 8 + 4: four are done at 3/4, send until 1; eight send from 1 until 9/8.
    assert halving_bytes(44) == 1.125
    assert halving_doubling(1.0, 44, NetworkLink(1.0, 1.0)) == Cost(12, 2.25)


@given(algorithms, sizes, servers, gpus, clusters, st.floats(1, 100))
def test_more_bytes_or_latency_take_longer_and_more_bandwidth_does_not(
    name: str, size: float, servers: int, gpus: int, cluster: GpuServers, times: float
) -> None:
    def cost(size: float, cluster: GpuServers) -> float:
        return ALGORITHMS[name](size, servers, gpus, cluster).seconds

    at_first = cost(size, cluster)
    # gloo's is a difference of what rises with the size.
    assert cost(size * times, cluster) >= at_first * (1 - 1e-12)
    for link in ("network", "local"):
        there = getattr(cluster, link)
        slow = replace(cluster, **{link: replace(there, latency=there.latency * times)})
        fast = replace(cluster, **{link: replace(there, bandwidth=there.bandwidth * times)})
        assert cost(size, fast) <= at_first <= cost(size, slow)


@given(algorithms, sizes, servers, gpus, clusters)
def test_nothing_beats_the_bytes_that_leave_a_server(
    name: str, size: float, servers: int, gpus: int, cluster: GpuServers
) -> None:
    cost = ALGORITHMS[name](size, servers, gpus, cluster)
    least = least_transfer(size, servers, cluster.network.bandwidth)
    assert cost.transfer >= least * (1 - 1e-12)


@given(algorithms, sizes, clusters)
def test_one_gpu_sums_nothing(name: str, size: float, cluster: GpuServers) -> None:
    assert ALGORITHMS[name](size, 1, 1, cluster) == Cost(0, 0)


@given(algorithms, sizes, gpus, clusters)
def test_one_server_does_not_use_the_network(
    name: str, size: float, gpus: int, cluster: GpuServers
) -> None:
    dead = replace(cluster, network=NetworkLink(1e9, 1e-9))
    alone = ALGORITHMS[name](size, 1, gpus, cluster)
    assert ALGORITHMS[name](size, 1, gpus, dead) == alone
    if name == "hierarchical":
        inside = reduce_(size, gpus, cluster.local)
        assert alone == inside + inside


def test_small_buffers_go_through_the_host() -> None:
    """Section 4: NCCL from 256 KB on, below that copies and a sum on the CPU."""
    only_host, only_local = NetworkLink(1.0, math.inf), NetworkLink(100.0, math.inf)
    cluster = GpuServers(NetworkLink(0, math.inf), only_local, only_host, nccl_from=1000)
    assert hierarchical(999, 4, 8, cluster).latency == 2 * 1.0
    assert hierarchical(1000, 4, 8, cluster).latency == 2 * 7 * 100.0
