"""Recorded orders of pushes: their file format, and the replay of a run by them."""

import hashlib
import io
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lsgd.errors import UsageError
from lsgd.files import atomic_write
from lsgd.recipe import Recipe
from lsgd.strategy.gate import Tickets
from lsgd.strategy.order import EpochScript, PushOrder
from lsgd.strategy.virtual import make_gates, play_epoch, staleness_metrics
from lsgd.untrusted_files import check_unzipped_size, read_bounded

ORDERS_FILE = "orders.npz"
"""Name of the orders file in a run folder."""
MOST_UNPACKED = 2**28
"""Maximum bytes of unpacked orders, which take 2 bytes for each push and server."""


@dataclass
class OrderHistory:
    """Recorded orders in which a run's servers have handled pushes up to now, by epoch."""

    workers: int
    servers: int
    """Number of gates, which is 1 where the gate of server 0 decides for all servers."""
    ahead: int = 0
    """Number of tickets that a worker of the next order holds beyond the one it computes."""
    epochs: dict[int, list[PushOrder]] = field(default_factory=dict)
    """Orders by epoch, from 0: one, and a further one for each interruption within the epoch."""
    aheads: dict[tuple[int, int], int] = field(default_factory=dict)
    """Value of `ahead` with which an order was recorded, by epoch and place; default `ahead`.

    A run may be resumed with another inputs.prefetch, or on other machines.
    """

    def append(self, epoch: int, order: PushOrder) -> None:
        """Append an epoch's order that was recorded with the current value of `ahead`."""
        of_epoch = self.epochs.setdefault(epoch, [])
        self.aheads[epoch, len(of_epoch)] = self.ahead
        of_epoch.append(order)

    def aheads_of(self, epoch: int) -> list[int]:
        """Return the value of `ahead` with which each order of an epoch was recorded."""
        places = range(len(self.epochs.get(epoch, [])))
        return [self.aheads.get((epoch, place), self.ahead) for place in places]

    @property
    def digest(self) -> str:
        """SHA-256 hash of all recorded orders of pushes, the same on every machine."""
        return hashlib.sha256(
            b"".join(each.tobytes() for each in self.arrays().values())
        ).hexdigest()

    def arrays(self) -> dict[str, Any]:
        """Encode all recorded orders of pushes as three arrays, as in their file.

        `run` has the numbers of workers, servers and prefetched tickets; `rows`, shape (rows, 4),
        the epoch, server and length of each row and the prefetched tickets of its order; and
        `events` all rows, one after the other.
        """
        rows = [
            (epoch, server, ahead, row)
            for epoch, orders in sorted(self.epochs.items())
            for order, ahead in zip(orders, self.aheads_of(epoch), strict=True)
            for server, row in enumerate(order)
        ]
        table = [(epoch, server, len(row), ahead) for epoch, server, ahead, row in rows]
        events = np.concatenate([np.empty(0, "<i2"), *(row for *_, row in rows)])
        return {
            "run": np.array([self.workers, self.servers, self.ahead], "<i4"),
            "rows": np.array(table, "<i4").reshape(-1, 4),
            "events": events.astype("<i2"),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> "OrderHistory":
        """Decode recorded orders of pushes from the three arrays of their file.

        These are the arrays that `arrays` returns. In `rows` of earlier versions the fourth column
        is missing, and that of `run` is valid for all orders. Raises ValueError if the arrays do
        not fit together.
        """
        workers, servers, ahead = map(int, arrays["run"])
        orders = cls(workers, servers, ahead)
        table, events = arrays["rows"], arrays["events"].astype(np.int16)
        if int(table[:, 2].sum()) != len(events) or servers < 1 or len(table) % servers:
            raise ValueError("its rows do not match its events")
        if table.shape[1] == 3:
            table = np.column_stack((table, np.full(len(table), ahead)))
        ends = np.cumsum(table[:, 2])
        for (epoch, server, length, recorded), end in zip(
            table.tolist(), ends.tolist(), strict=True
        ):
            of_epoch = orders.epochs.setdefault(epoch, [])
            if server == 0:
                orders.aheads[epoch, len(of_epoch)] = recorded
                of_epoch.append([])
            of_epoch[-1].append(events[end - length : end])
        return orders

    def to_tensor(self) -> Tensor:
        """Encode the recorded orders for a checkpoint, as a uint8 tensor of the file's bytes."""
        file = io.BytesIO()
        np.savez_compressed(file, **self.arrays())
        return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, content: Tensor) -> "OrderHistory":
        """Decode recorded orders of pushes from the uint8 tensor of a checkpoint."""
        with np.load(io.BytesIO(content.numpy().tobytes()), allow_pickle=False) as arrays:
            return cls.from_arrays(dict(arrays))

    def save(self, path: Path) -> None:
        """Write the orders to a compressed .npz file: less than 2 bytes per push and server."""
        with atomic_write(path) as file:
            np.savez_compressed(file, **self.arrays())


def read_order_file(recipe: Recipe) -> bytes:
    """Read the file of recorded pushes that the recipe field strategy.order names, as bytes.

    Raises UsageError if it cannot be read, or has changed since the recipe's fingerprint was made.
    """
    path = Path(recipe.strategy.order)
    content = _content(path)
    if hashlib.sha256(content).hexdigest() != recipe.order_digest:
        raise UsageError(
            f"strategy.order={path} has changed since this job started to read it; write the "
            "path of a copy that does not change"
        )
    return content


def load_orders(path: Path) -> OrderHistory:
    """Read recorded orders of pushes from a file; raise UsageError if it is not such a file."""
    return parse_orders(_content(path), path)


def parse_orders(content: bytes, path: Path) -> OrderHistory:
    """Decode the bytes of a file of recorded orders of pushes; raise UsageError if invalid."""
    try:
        check_unzipped_size(content, MOST_UNPACKED)
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return OrderHistory.from_arrays(dict(arrays))
    except Exception as error:  # of any type, since the file may contain anything
        why = str(error) or type(error).__name__
    raise _unreadable(path, why)


def _content(path: Path) -> bytes:
    try:
        return read_bounded(path, MOST_UNPACKED)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"strategy.order={path} cannot be read as an event order ({why}); give the {ORDERS_FILE} "
        "of a run with strategy.order=live"
    )


class RecordedOrders:
    """Source of epoch scripts that replays the recorded orders of another run of the recipe."""

    def __init__(self, recipe: Recipe, orders: OrderHistory) -> None:
        self.recipe, self.orders = recipe, orders
        gates = len(make_gates(recipe.strategy, recipe.workers, recipe.tickets))
        if (orders.workers, orders.servers) != (recipe.workers, gates):
            raise UsageError(
                f"strategy.order={recipe.strategy.order} has {orders.workers} workers and event "
                f"orders of {orders.servers} servers, and this recipe has {recipe.workers} and "
                f"{gates}; write the overrides of the run that recorded it"
            )
        self.script = lru_cache(2)(self._script)
        """Function that returns the script of an epoch, with the versions that each push reads."""

    def _script(self, epoch: int) -> EpochScript:
        recipe = self.recipe
        if epoch not in self.orders.epochs:
            raise UsageError(
                f"strategy.order={recipe.strategy.order} ends with epoch {epoch}, where the "
                f"recorded run ended; write epochs={epoch}"
            )
        tickets = Tickets(recipe.tickets, ahead=self.orders.ahead)
        aheads = self.orders.aheads_of(epoch)
        script = play_epoch(recipe, self.orders.epochs[epoch], tickets, aheads)
        if not script.pushes:  # its run was stopped before the first update of the epoch
            raise UsageError(
                f"strategy.order={recipe.strategy.order} ends after step "
                f"{epoch * recipe.steps_per_epoch}, where the recorded run ended, and this run has "
                "reached that step"
            )
        return script

    def row(self, step: int) -> dict[str, float | list[int]]:
        """Return the staleness and dropped pushes since the last metrics row, as of this step."""
        epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        return staleness_metrics(self.script(epoch), of_epoch, self.recipe.log_steps)

    def epoch_start(self, epoch: int) -> float:
        """Return 0 as the start of every epoch, since recorded orders have no virtual time."""
        return 0.0
