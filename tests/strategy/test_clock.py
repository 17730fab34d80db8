import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsgd.recipe.strategies import VirtualCluster
from lsgd.strategy.clock import Timeline, simulate, step_seconds
from lsgd.strategy.gate import AdmissionGate, BarrierGate, BoundedStalenessGate, Tickets
from lsgd.strategy.network import SharedLink, Transfer
from lsgd.strategy.order import EpochScript, play_orders
from lsgd.strategy.placement import PLACEMENTS, elements, place

LENET = [150, 6, 2400, 16, 48000, 120, 10080, 84, 840, 10]
"""The numbers of elements of LeNet-5's parameters, in their order."""
UNLIMITED = VirtualCluster(
    step=1.0, spread=0.0, server_gbits=1e12, worker_gbits=1e12, latency_us=0.0
)
MEGABYTE = VirtualCluster(
    step=1.0, spread=0.0, server_gbits=0.008, worker_gbits=8.0, latency_us=0.0
)
"""A server gets or gives 1 MB in a second, and a worker's network is no limit."""


def asynchronous(workers: int, servers: int = 1, slack: float = math.inf) -> list[AdmissionGate]:
    return [BoundedStalenessGate(workers, slack=slack) for _ in range(servers)]


def barrier(workers: int, tickets: int, backup: int = 0) -> list[AdmissionGate]:
    return [BarrierGate(workers, pushes=workers - backup, tickets=tickets)]


def timeline(
    cluster: VirtualCluster,
    gates: list[AdmissionGate],
    tickets: int,
    workers: int,
    loads: Sequence[float] = (1e6,),
    *,
    colocated: bool = False,
    seed: int = 0,
    epoch: int = 0,
) -> Timeline:
    return simulate(
        cluster,
        gates,
        Tickets(tickets),
        loads,
        workers=workers,
        colocated=colocated,
        seed=seed,
        epoch=epoch,
    )


def pushes(made: Timeline) -> NDArray[np.bool_]:
    """Which events of server 0 are pushes."""
    are_pushes: NDArray[np.bool_] = made.order[0] >= 0
    return are_pushes


def staleness(script: EpochScript) -> list[int]:
    return [push.applied[0] - push.read[0] for push in script.pushes]


def test_a_timeline_is_a_function_of_seed_cluster_and_epoch() -> None:
    def drawn(cluster_seed: int = 0, seed: int = 3, epoch: int = 1) -> tuple[int, ...]:
        cluster = VirtualCluster(seed=cluster_seed)
        made = timeline(cluster, asynchronous(8), 200, 8, seed=seed, epoch=epoch)
        return tuple(made.order[0].tolist())

    first = drawn()
    assert drawn() == first
    others = [drawn(seed=4), drawn(epoch=2), drawn(1), drawn(2**24 - 1)]
    assert len({first, *others}) == 5


def test_the_seconds_of_a_step_depend_on_nothing_but_its_place() -> None:
    cluster = VirtualCluster(slow_share=0.1, slow_by=1.0, seed=5)
    of_all = step_seconds(cluster, workers=6, seed=1, epoch=2, steps=range(100))
    later = step_seconds(cluster, workers=3, seed=1, epoch=2, steps=range(70, 100))
    assert (of_all[:3, 70:] == later).all()
    assert (np.rint(of_all * 1e9) / 1e9 == of_all).all()


def test_a_worker_takes_its_own_steps_in_turn_whatever_the_others_do() -> None:
    cluster = replace(UNLIMITED, spread=1.0)
    seconds = step_seconds(cluster, workers=3, seed=0, epoch=0, steps=range(200))
    made = timeline(cluster, asynchronous(3), 250, 3)
    for worker in range(3):
        own = made.order[0] == worker
        times = [
            time for time, is_own in zip(made.updates, own[pushes(made)], strict=True) if is_own
        ]
        assert times == pytest.approx(np.cumsum(seconds[worker])[: len(times)])


def test_seconds_have_the_distribution_that_the_cluster_says() -> None:
    cluster = VirtualCluster(step=0.2, spread=0.5, speeds=[1.0, 3.0])
    seconds = step_seconds(cluster, workers=2, seed=0, epoch=0, steps=range(40_000))
    logs = np.log(seconds / [[0.2], [0.6]])
    assert abs(logs.mean()) < 0.01
    assert logs.std(axis=1) == pytest.approx([0.5, 0.5], abs=0.01)
    held_up = replace(cluster, slow_share=0.25, slow_by=7.0)
    later = step_seconds(held_up, workers=2, seed=0, epoch=0, steps=range(40_000)) - seconds
    assert (later > 6.9).mean() == pytest.approx(0.25, abs=0.01)
    assert ((later > 6.9) | (later < 1e-8)).all()


def ends(arrivals: Sequence[tuple[float, float]]) -> list[float]:
    """When messages that join a link at these times with this work leave it."""
    link, times = SharedLink(), dict[int, float]()
    for number, (now, work) in enumerate([*arrivals, (math.inf, 0.0)]):
        while link.due <= now and link.bundles:
            due = link.due
            times |= {message.worker: due for message in link.end()}
        if now < math.inf:
            link.add(now, work, [Transfer(lambda *_: None, 0, number)])
    return [times[number] for number in sorted(times)]


def test_messages_share_a_link_fairly() -> None:
    assert ends([(0, 1), (0, 1)]) == [2, 2]
    assert ends([(0, 1), (0, 3)]) == [2, 4]
    # The first is half done as the second comes, which is alone again from second 2 on.
    assert ends([(0, 1), (0.5, 1)]) == pytest.approx([1.5, 2])
    assert ends([(0, 3), (1, 1), (1, 1)]) == pytest.approx([5, 4, 4])
    assert ends([(0, 1), (5, 1)]) == [1, 6]


def ends_by_small_steps(arrivals: Sequence[tuple[float, float]], step: float) -> list[float]:
    left = [work for _, work in arrivals]
    done = [math.nan] * len(left)
    now = 0.0
    while max(left) > 0:
        there = [i for i, (begin, _) in enumerate(arrivals) if begin <= now and left[i] > 0]
        now += step
        for i in there:
            left[i] -= step / len(there)
            done[i] = now
    return done


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 2)), min_size=1, max_size=6))
def test_a_link_is_what_small_steps_make_of_it(arrivals: list[tuple[float, float]]) -> None:
    arrivals.sort()
    assert ends(arrivals) == pytest.approx(ends_by_small_steps(arrivals, 1e-3), abs=0.03)


def test_messages_both_ways_meet_in_half_duplex_only() -> None:
    apart = replace(MEGABYTE, speeds=[1.0, 2.0])
    both_ways = [timeline(replace(apart, duplex=d), asynchronous(2), 6, 2) for d in (True, False)]
    # Until second 5 there is one message at a time: 2 s of replies, 1 s or 2 s of computing, and
    # the push of worker 0. Then its reply meets the push of worker 1.
    assert [made.updates[0] for made in both_ways] == pytest.approx([4, 4])
    assert [made.updates[1] for made in both_ways] == pytest.approx([5, 6])


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_the_staleness_of_equal_workers_is_that_of_all_others(workers: int) -> None:
    cluster = replace(UNLIMITED, spread=0.05)
    made = timeline(cluster, asynchronous(workers), 400 * workers, workers)
    script = play_orders(
        [made.order], lambda _: asynchronous(workers), Tickets(400 * workers), workers
    )
    # The first pushes are fresher: nobody has made an update before them.
    assert np.mean(staleness(script)[workers:]) == pytest.approx(workers - 1, rel=0.01)


def test_asynchronous_servers_come_near_to_what_their_network_bears() -> None:
    """Throughput is at most min(N / (c + 2 M / bw), bw / 2 M) pushes a second."""
    size, step = 0.247e6, 0.007
    cluster = VirtualCluster(
        step=step, spread=0.1, server_gbits=1, worker_gbits=1, duplex=False, latency_us=0
    )
    both_ways = 2 * size / 125e6

    def share_of_bound(workers: int) -> float:
        made = timeline(cluster, asynchronous(workers), 100 * workers, workers, [size])
        rate = (len(made.updates) - 1) / (made.updates[-1] - made.updates[0])
        return rate / min(workers / (step + both_ways), 1 / both_ways)

    shares = [share_of_bound(workers) for workers in (1, 2, 4, 8, 16)]
    assert max(shares) < 1.01
    assert shares[0] == pytest.approx(1, abs=0.02)
    assert min(shares[3:]) > 0.98


def test_a_synchronous_step_waits_for_the_slowest_worker() -> None:
    cluster = replace(UNLIMITED, spread=0.5, slow_share=0.05, slow_by=3.0)
    made = timeline(cluster, barrier(10, 500), 500, 10)
    slowest = step_seconds(cluster, workers=10, seed=0, epoch=0, steps=range(50)).max(axis=0)
    assert np.diff([0, *made.updates]) == pytest.approx(slowest)


def test_a_synchronous_step_with_backup_workers_waits_for_those_it_needs() -> None:
    cluster = replace(UNLIMITED, speeds=[1.0] * 4 + [100.0] * 2)
    made = timeline(cluster, barrier(6, 80, backup=2), 80, 6)
    assert made.updates == pytest.approx(range(1, 21))
    assert timeline(cluster, barrier(6, 60), 60, 6).updates == pytest.approx(
        [100 * i for i in range(1, 11)]
    )


@pytest.mark.parametrize("duplex", [True, False])
def test_a_synchronous_step_by_hand(duplex: bool) -> None:
    """All pushes, then all replies, share the server's link; each has its overhead and latency."""
    cluster = replace(MEGABYTE, latency_us=3e4, overhead_us=2e5, duplex=duplex)
    made = timeline(cluster, barrier(5, 50), 50, 5)
    assert np.diff(made.updates) == pytest.approx([5 * 1.2 + 0.03 + 1 + 5 * 1.2 + 0.03] * 9)
    assert made.waits == pytest.approx([5 * 1.2 + 0.03] * 50)


def test_servers_that_follow_hear_of_an_update_a_latency_later() -> None:
    cluster = replace(MEGABYTE, latency_us=5e5)
    made = timeline(cluster, barrier(2, 6), 6, 2, [1e6, 1e6])
    # Server 0 has replied by 2 + 0.5; its word takes 0.5, and the other's reply as long again.
    assert np.diff(made.updates) == pytest.approx([0.5 + 2 + 0.5 + 1 + 2 + 0.5] * 2)


def test_servers_that_follow_wait_for_pushes_on_their_own_slow_way() -> None:
    made = timeline(MEGABYTE, barrier(2, 6), 6, 2, [0, 1e6])
    # Server 0 has all pushes when they are computed, and the other one 2 s later.
    assert np.diff(made.updates) == pytest.approx([2 + 2 + 1] * 2)


def test_a_colocated_server_shares_the_network_of_its_worker() -> None:
    cluster = replace(MEGABYTE, worker_gbits=0.008, server_gbits=1e12, duplex=False)
    alone = timeline(cluster, barrier(1, 3), 3, 1, [1e6], colocated=True)
    assert alone.updates == pytest.approx([1, 2, 3])
    assert alone.sent == [0]
    # Each of two machines gives half to the other and gets as much, over one link of 1 MB/s.
    both = timeline(cluster, barrier(2, 6), 6, 2, [1e6, 1e6], colocated=True)
    assert np.diff(both.updates) == pytest.approx([2 + 1 + 2] * 2)
    # Three pushes, and a reply before the first and after each.
    assert both.sent == [3e6 + 4e6] * 2


def test_bytes_are_counted_exactly() -> None:
    made = timeline(VirtualCluster(), asynchronous(3, servers=2), 20, 3, [1000, 7])
    # A reply to each of the workers at first, then one to each push.
    assert made.sent == [1000 * (3 + 2 * 20), 7 * (3 + 2 * 20)]


clusters = st.builds(
    VirtualCluster,
    step=st.floats(0.001, 1),
    spread=st.floats(0, 2),
    slow_share=st.floats(0, 0.3),
    slow_by=st.floats(0, 5),
    server_gbits=st.floats(0.01, 100),
    worker_gbits=st.floats(0.01, 100),
    duplex=st.booleans(),
    latency_us=st.floats(0, 1e5),
    overhead_us=st.floats(0, 1e4),
    seed=st.integers(0, 2**24 - 1),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), clusters, st.integers(1, 7), st.integers(1, 5), st.integers(1, 60))
def test_an_epoch_ends_and_plays(
    data: st.DataObject, cluster: VirtualCluster, workers: int, servers: int, tickets: int
) -> None:
    colocated = data.draw(st.booleans())
    servers = min(servers, workers) if colocated else servers
    backup = data.draw(st.integers(0, workers - 1))
    slack = data.draw(st.sampled_from([0, 1, 3, math.inf]))
    placement = data.draw(st.sampled_from(PLACEMENTS))
    loads = [4 * elements(slices) for slices in place(LENET, servers, placement)]
    is_barrier = data.draw(st.booleans())

    def gates() -> list[AdmissionGate]:
        if is_barrier:
            return barrier(workers, tickets, backup)
        return asynchronous(workers, servers, slack)

    made = timeline(cluster, gates(), tickets, workers, loads, colocated=colocated)
    script = play_orders([made.order], lambda _: gates(), Tickets(tickets), workers)
    assert sorted(push.ticket for push in script.pushes) == [*range(tickets)]
    assert len(made.waits) == tickets
    assert min(made.waits) >= 0
    assert made.updates == sorted(made.updates)
    assert len(made.updates) == max(push.applied[0] for push in script.pushes) + 1
    assert made.updates[-1] <= made.seconds
    again = gates()[0]
    dropped = sum(again.push(event).dropped for event in made.order[0].tolist() if event >= 0)
    assert int(pushes(made).sum()) == tickets + dropped
    if not colocated:
        # Every server gets all pushes, and answers each of them that is not the last.
        messages = [sent / load for sent, load in zip(made.sent, loads, strict=True) if load]
        assert messages == [messages[0]] * len(messages)
    if not is_barrier:
        assert [sorted(row) for row in made.order] == [sorted(made.order[0].tolist())] * servers
        for row in made.order:
            pushed = dict.fromkeys(range(workers), 0)
            for event in row:
                if event < 0:
                    del pushed[-1 - event]
                else:
                    pushed[event] += 1
                    assert pushed[event] - min(pushed.values()) <= slack + 1


def test_a_push_of_local_steps_takes_the_seconds_of_each() -> None:
    """The last one has fewer, and a worker goes on with the next of its draws."""
    made = simulate(
        replace(UNLIMITED, spread=0.5),
        asynchronous(1),
        Tickets(3),
        [1e6],
        workers=1,
        colocated=False,
        seed=0,
        epoch=0,
        steps=[3, 3, 2].__getitem__,
    )
    cluster = replace(UNLIMITED, spread=0.5)
    drawn = step_seconds(cluster, workers=1, seed=0, epoch=0, steps=range(8))[0]
    ends = [drawn[:end].sum() for end in (3, 6, 8)]
    assert made.updates == pytest.approx(ends, rel=1e-6)
