"""What follows from an order of pushes, before any of them is computed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsgd.errors import UsageError
from lsgd.strategy.gate import AdmissionGate, BarrierGate, BoundedStalenessGate, Tickets
from lsgd.strategy.order import EpochScript, PushOrder, play_orders


def order(*rows: list[int]) -> PushOrder:
    return [np.array(row, dtype=np.int16) for row in rows]


def played(gates: list[AdmissionGate], tickets: int, workers: int, *rows: list[int]) -> EpochScript:
    left = Tickets(tickets)
    script = play_orders([order(*rows)], lambda _: gates, left, workers)
    if left.left:
        raise UsageError("this event order belongs to another run: it is too short")
    return script


def asynchronous(servers: int, workers: int) -> list[AdmissionGate]:
    return [BoundedStalenessGate(workers) for _ in range(servers)]


def test_a_push_is_as_stale_as_there_were_others() -> None:
    script = played(asynchronous(1, 3), 5, 3, [0, 1, 0, -1, 2, -3, 1, -2])
    assert [(p.worker, p.ticket, p.read, p.applied) for p in script.pushes] == [
        (0, 0, [0], [0]), (1, 1, [0], [1]), (0, 3, [1], [2]), (2, 2, [0], [3]), (1, 4, [2], [4]),
    ]  # fmt: skip
    assert script.dropped == [0] * 5
    assert script.steps == [[0], [1], [2], [3], [4]]
    assert script.last_read == {(0, 0): 3, (0, 1): 2, (0, 2): 4}


def test_two_servers_may_handle_pushes_in_another_order() -> None:
    """Worker 0 reads a model whose halves have had different updates."""
    script = played(asynchronous(2, 2), 3, 2, [0, 1, -2, 0, -1], [1, 0, 0, -2, -1])
    assert [(p.worker, p.read, p.applied) for p in script.pushes] == [
        (0, [0, 0], [0, 1]), (1, [0, 0], [1, 0]), (0, [1, 2], [2, 2]),
    ]  # fmt: skip
    assert script.updates == [[[0], [1], [2]], [[1], [0], [2]]]


def test_the_first_pushes_make_the_update_and_the_late_one_is_dropped() -> None:
    gates: list[AdmissionGate] = [BarrierGate(3, pushes=2, tickets=5)]
    # Worker 0 is late twice; its batch is given to another at once.
    script = played(gates, 5, 3, [2, 1, 0, 1, 2, 0, 1])
    assert [(p.worker, p.ticket, p.read, p.applied) for p in script.pushes] == [
        (1, 1, [0], [0]), (2, 2, [0], [0]), (1, 0, [1], [1]), (2, 3, [1], [1]), (1, 4, [2], [2]),
    ]  # fmt: skip
    assert script.dropped == [0, 1, 1]
    assert script.steps == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 1, 0]],  # too short
        [[0, 1, 0, 1, 0, 1, 0, -1, -2]],  # too long
        [[0, 0, 0, 2, 0, -1, -2]],  # a worker that is not there
        [[0, 0, 0, -4, 0, 0, -1]],
        [[0, 0, 0, -1, -1, 0, 0]],  # one that leaves twice
        [[0, 1, 0, 1, 0, -1, -2]] * 2,  # of two servers
    ],
)
def test_an_order_of_another_run_is_refused(rows: list[list[int]]) -> None:
    with pytest.raises(UsageError, match=r"^this event order belongs to another run"):
        played(asynchronous(1, 2), 5, 2, *rows)


@settings(max_examples=100)
@given(st.lists(st.integers(-4, 3), max_size=12), st.booleans())
def test_any_order_is_played_or_refused(row: list[int], barrier: bool) -> None:
    gates = [BarrierGate(3, pushes=2, tickets=5)] if barrier else asynchronous(1, 3)
    try:
        script = played(gates, 5, 3, row)
    except UsageError:
        return
    assert sorted(push.ticket for push in script.pushes) == list(range(5))
