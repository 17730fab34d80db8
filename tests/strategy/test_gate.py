"""Gates: who may go on and which pushes make an update, in any order in which pushes can come."""

import math
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lsgd.strategy.gate import (
    AdmissionGate,
    BarrierGate,
    BoundedStalenessGate,
    PushEffects,
    Tickets,
)


class Epoch:
    """One server and its workers; at each moment any worker that computes may be the next."""

    def __init__(self, gate: AdmissionGate, tickets: int, workers: int) -> None:
        self.gate, self.tickets = gate, Tickets(tickets)
        self.version = 0
        self.computing: dict[int, int] = {}
        """The version that each worker computes with."""
        self.pushed: Counter[int] = Counter()
        self.applied: list[tuple[tuple[int, ...], list[int], list[int]]] = []
        """Of each update the workers, their tickets, and the versions that they had read."""
        self.under_way: dict[int, int] = {}
        self.dropped = 0
        self.release(tuple(range(workers)))

    def release(self, workers: tuple[int, ...]) -> None:
        for worker in workers:
            if not self.tickets.issue(worker):
                self.leave(worker)
            else:
                self.computing[worker] = self.version

    def leave(self, worker: int) -> None:
        self.handle(self.gate.leave(worker))

    def push(self, worker: int) -> None:
        self.pushed[worker] += 1
        self.under_way[worker] = self.computing.pop(worker)
        self.handle(self.gate.push(worker), worker)

    def handle(self, effects: PushEffects, worker: int | None = None) -> None:
        if effects.dropped:
            assert worker is not None
            assert self.under_way.pop(worker) < self.version
            self.dropped += 1
        if effects.applied:
            used = [self.tickets.held[each][0] for each in effects.applied]
            read = [self.under_way.pop(each) for each in effects.applied]
            self.applied.append((effects.applied, used, read))
            self.version += 1
        self.tickets.apply_effects(effects)
        self.release(effects.released)


def interleaved(gate: AdmissionGate, tickets: int, workers: int, seed: int) -> Epoch:
    """An epoch in a random order; some workers are much slower than others."""
    draw = random.Random(seed)
    weights = [draw.choice([0.05, 1.0, 1.0, 5.0]) for _ in range(workers)]
    epoch = Epoch(gate, tickets, workers)
    while epoch.computing:
        able = sorted(epoch.computing)
        epoch.push(draw.choices(able, [weights[each] for each in able])[0])
        if isinstance(gate, BoundedStalenessGate) and gate.pushed:
            pushes = gate.pushed.values()
            assert max(pushes) - min(pushes) <= gate.slack + 1
    return epoch


def check_epoch(epoch: Epoch, tickets: int) -> None:
    """Every batch is applied once, and no push is lost."""
    used = [ticket for _, each, _ in epoch.applied for ticket in each]
    assert sorted(used) == list(range(tickets)), "it stopped, or a batch was used twice"
    assert epoch.pushed.total() == len(used) + epoch.dropped
    assert not epoch.under_way


workers_, tickets_, seeds = st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**32)


@settings(max_examples=80)
@given(workers=workers_, backup=st.integers(0, 7), tickets=tickets_, seed=seeds)
def test_updates_of_first_pushes(workers: int, backup: int, tickets: int, seed: int) -> None:
    pushes = max(1, workers - backup)
    epoch = interleaved(
        BarrierGate(workers, pushes=pushes, tickets=tickets), tickets, workers, seed
    )
    check_epoch(epoch, tickets)
    sizes = [len(made) for made, _, _ in epoch.applied]
    whole, rest = divmod(tickets, pushes)
    assert sizes == [pushes] * whole + [rest] * bool(rest)
    for version, (made, _, read) in enumerate(epoch.applied):
        assert read == [version] * len(made), "a stale push was applied"
        assert list(made) == sorted(set(made))
    if pushes == workers:
        assert not epoch.dropped
        # The batches of a step are those of all-reduce, in the order of the workers.
        used = [ticket for _, each, _ in epoch.applied for ticket in each]
        assert used == list(range(tickets))


@settings(max_examples=80)
@given(workers=workers_, slack=st.sampled_from([0, 1, 3, math.inf]), tickets=tickets_, seed=seeds)
def test_updates_of_single_pushes(workers: int, slack: float, tickets: int, seed: int) -> None:
    epoch = interleaved(BoundedStalenessGate(workers, slack=slack), tickets, workers, seed)
    check_epoch(epoch, tickets)
    assert not epoch.dropped
    assert len(epoch.applied) == tickets
    for version, (_, _, [read]) in enumerate(epoch.applied):
        assert version - read >= 0
        if slack == 0:
            assert read <= version // workers * workers, "a worker went on alone"


# --- Workers that go and come ----------------------------------------------------------------


def test_nobody_waits_for_a_worker_that_has_left() -> None:
    gate = BoundedStalenessGate(3, slack=0)
    assert gate.push(0).released == gate.push(1).released == ()
    assert gate.leave(2).released == (0, 1)


def test_a_worker_that_comes_back_is_as_slow_as_the_slowest() -> None:
    gate = BoundedStalenessGate(2, slack=1)
    gate.leave(0)
    for _ in range(5):
        assert gate.push(1).released == (1,)
    assert gate.join(0).released == (0,)
    assert gate.push(1).released == (1,)
    assert gate.push(1).released == ()
    assert gate.push(0).released == (0, 1)


def test_backup_workers_stand_in_for_one_that_has_left() -> None:
    gate = BarrierGate(3, pushes=2, tickets=10)
    gate.leave(2)
    assert gate.push(1) == PushEffects()
    assert gate.push(0) == PushEffects((0, 1), released=(0, 1))
    assert gate.join(2).released == (2,)
    assert gate.push(2) == PushEffects()
    assert gate.push(0) == PushEffects((0, 2), dropped_next=(1,), released=(0, 2))
    assert gate.push(1) == PushEffects(dropped=True, released=(1,))


def test_a_push_of_a_worker_that_has_left_since_does_not_count() -> None:
    """Another worker has its batch."""
    gate = BarrierGate(3, pushes=2, tickets=10)
    gate.push(1)
    gate.leave(1)
    assert gate.push(0) == PushEffects()
    assert gate.push(2) == PushEffects((0, 2), released=(0, 2))


def test_a_batch_that_is_put_back_is_the_next() -> None:
    tickets = Tickets(4)
    assert [tickets.issue(worker) for worker in (5, 6, 7)] == [[0], [1], [2]]
    tickets.apply_effects(PushEffects(applied=(5,), dropped_next=(6, 8)))  # of whom 8 has none
    assert list(tickets.held[7]) == [2]
    assert [tickets.issue(worker) for worker in (8, 9, 5)] == [[1], [3], []]


def test_a_worker_holds_batches_for_its_loader() -> None:
    tickets = Tickets(9, ahead=2)
    assert [tickets.issue(worker) for worker in (0, 1)] == [[0, 1, 2], [3, 4, 5]]
    tickets.apply_effects(PushEffects(applied=(1,)))
    assert tickets.issue(1) == [6]
    # What is put back is what it computes with, not what it will.
    tickets.apply_effects(PushEffects(applied=(1,), dropped_next=(0,)))
    assert tickets.issue(0) == [0]
    tickets.give_back(1)
    assert tickets.left == 7
    assert tickets.issue(2) == [5, 6, 7]
