"""The file of recorded orders, and what is refused of it."""

import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.base_recipe import BASE, with_fields

from lsgd.errors import UsageError
from lsgd.strategy.gate import BoundedStalenessGate, Tickets
from lsgd.strategy.push_scheduler import PushScheduler
from lsgd.strategy.recorded import MOST_UNPACKED, OrderHistory, RecordedOrders, load_orders


def some() -> OrderHistory:
    """Two epochs of two servers, of which the first had to be left."""
    rows = [np.array(row, np.int16) for row in ([0, 1, -1], [1, 0, -1, -2], [1, 1], [2, 0])]
    return OrderHistory(2, 2, ahead=3, epochs={0: [rows[:2], rows[2:]], 4: [rows[2:]]})


def same(one: OrderHistory, other: OrderHistory) -> bool:
    return one.digest == other.digest and str(one.epochs) == str(other.epochs)


def test_a_file_and_a_checkpoint_have_all_of_it(tmp_path: Path) -> None:
    some().save(tmp_path / "orders.npz")
    assert same(load_orders(tmp_path / "orders.npz"), some())
    assert same(OrderHistory.from_tensor(some().to_tensor()), some())
    assert load_orders(tmp_path / "orders.npz").ahead == 3


def test_the_hash_is_of_everything() -> None:
    others = [some() for _ in range(5)]
    others[0].ahead = 2
    others[1].epochs[0][0][0][0] = 1
    others[2].epochs[5] = others[2].epochs.pop(4)
    others[3].epochs[0] = others[3].epochs[0][::-1]
    others[4].aheads[0, 1] = 4
    assert len({each.digest for each in (some(), *others)}) == 6


def interrupted(ahead: int, left: list[int], seed: int) -> tuple[list[np.ndarray], list[int]]:
    """An order of two workers, left after seven pushes of these tickets, and its batches."""
    draw, batches = np.random.default_rng(seed), list[int]()
    tickets = Tickets(0, ahead=ahead)
    tickets.free = list(left)
    desk = PushScheduler(BoundedStalenessGate(2), 2, tickets)
    desk.begin(range(2))
    for _ in range(7):
        worker = int(draw.choice(sorted(desk.computing)))
        batches.append(tickets.held[worker][0])
        desk.push(worker)
    desk.stop()
    for worker in sorted(desk.computing):
        batches.append(tickets.held[worker][0])
        desk.push(worker)
    return [np.array(desk.order, np.int16)], batches


@pytest.mark.slow
def test_an_epoch_that_is_resumed_with_another_prefetch_replays_each_order_with_its_own(
    tmp_path: Path,
) -> None:
    """Else batches are trained twice or never, and the replay is another run without an error."""
    words = {"strategy__name": "async", "workers": 2, "worker_batch": 1}
    recipe = with_fields(BASE, **words, strategy__order=str(tmp_path / "orders.npz"))
    orders, trained = OrderHistory(2, 1, ahead=1), list[int]()
    for ahead in (1, 4, 2):
        orders.ahead = ahead
        left = sorted({*range(recipe.tickets)} - {*trained})
        order, batches = interrupted(ahead, left, seed=ahead)
        orders.append(0, order)
        trained += batches
    orders.save(tmp_path / "orders.npz")
    loaded = load_orders(tmp_path / "orders.npz")
    script = RecordedOrders(recipe, loaded).script(0)
    assert [push.ticket for push in script.pushes] == trained
    assert loaded.aheads_of(0) == [1, 4, 2]


def test_an_order_of_an_earlier_version_has_one_prefetch_for_all_epochs() -> None:
    arrays = some().arrays()
    arrays["rows"] = arrays["rows"][:, :3]
    assert same(OrderHistory.from_arrays(arrays), some())
    orders = OrderHistory.from_arrays(arrays)
    orders.ahead = 9  # resumed with more
    assert (orders.aheads_of(0), orders.aheads_of(4)) == ([3, 3], [3])


def test_an_order_has_at_most_two_bytes_per_push(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    row = draw.integers(0, 8, 100_000).astype(np.int16)
    orders = OrderHistory(8, 2, epochs={0: [[row, row[::-1].copy()]]})
    orders.save(tmp_path / "orders.npz")
    assert (tmp_path / "orders.npz").stat().st_size < 2 * 2 * len(row)
    loaded = load_orders(tmp_path / "orders.npz")
    assert loaded.digest == orders.digest
    assert all(
        np.array_equal(one, other)
        for one, other in zip(loaded.epochs[0][0], orders.epochs[0][0], strict=True)
    )


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_what_is_no_order_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "orders.npz").write_bytes(content)
    with pytest.raises(UsageError, match=r"orders\.npz cannot be read as an event order \("):
        load_orders(tmp_path / "orders.npz")


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "orders.npz", run=np.arange(3), rows=np.ones((1, 3)), events=np.arange(7))
    with pytest.raises(UsageError, match=r"its rows do not match its events"):
        load_orders(tmp_path / "orders.npz")
    np.savez(tmp_path / "orders.npz", weights=np.arange(3))
    with pytest.raises(UsageError, match=r"cannot be read as an event order"):
        load_orders(tmp_path / "orders.npz")


def test_an_order_of_another_run_is_refused(tmp_path: Path) -> None:
    some().save(tmp_path / "orders.npz")
    words = {"strategy__name": "async", "strategy__order": str(tmp_path / "orders.npz")}
    sentence = "has 2 workers and event orders of 2 servers, and this recipe has 3 and 1"
    with pytest.raises(UsageError, match=sentence):
        RecordedOrders(with_fields(BASE, workers=3, **words), some())


def test_the_fingerprint_is_of_what_is_in_the_file(tmp_path: Path) -> None:
    some().save(tmp_path / "a.npz")
    some().save(tmp_path / "b.npz")
    shorter = some()
    shorter.epochs = {epoch: orders for epoch, orders in some().epochs.items() if epoch < 4}
    shorter.save(tmp_path / "c.npz")
    a, b, c = (
        with_fields(BASE, strategy__name="async", strategy__order=str(tmp_path / name)).fingerprint
        for name in ("a.npz", "b.npz", "c.npz")
    )
    assert a == b != c


@pytest.mark.slow
def test_a_damaged_archive_and_one_that_unpacks_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "orders.npz"
    some().save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with suppress(UsageError):
            load_orders(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(MOST_UNPACKED + 1))
    with pytest.raises(UsageError, match="bytes unpacked"):
        load_orders(path)
