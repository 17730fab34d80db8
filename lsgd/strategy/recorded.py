"""Orders of pushes that real processes have recorded: their file, and a run that follows it."""

import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lsgd.errors import Refused
from lsgd.files import whole
from lsgd.recipe import Recipe
from lsgd.strategy.gate import Tickets
from lsgd.strategy.order import Order, Script, play
from lsgd.strategy.virtual import make_gates, staleness_row

FILE = "orders.npz"
"""The name of the file in a run folder."""


@dataclass
class Orders:
    """The orders of a run, as far as it has come."""

    workers: int
    servers: int
    """The number of gates: that of server 0 may decide for all."""
    ahead: int = 0
    """How many tickets a worker holds beside the one that it computes with."""
    epochs: dict[int, list[Order]] = field(default_factory=dict)
    """By epoch, counted from 0: one order, and one more for each time that the run had to leave
    before the epoch's end."""

    def before(self, epoch: int) -> "Orders":
        """Those of the epochs before this one."""
        kept = {number: orders for number, orders in self.epochs.items() if number < epoch}
        return Orders(self.workers, self.servers, self.ahead, kept)

    @property
    def digest(self) -> str:
        """A hash of them all, the same on every machine."""
        return hashlib.sha256(
            b"".join(each.tobytes() for each in self.arrays().values())
        ).hexdigest()

    def arrays(self) -> dict[str, Any]:
        """All of them as three arrays: `run`, the numbers of workers, servers and tickets ahead;
        `rows`, shape (rows, 3), the epoch, server and length of each row; and `events`, one row
        after the other."""
        rows = [
            (epoch, server, row)
            for epoch, orders in sorted(self.epochs.items())
            for order in orders
            for server, row in enumerate(order)
        ]
        table = [(epoch, server, len(row)) for epoch, server, row in rows]
        events = np.concatenate([np.empty(0, "<i2"), *(row for *_, row in rows)])
        return {
            "run": np.array([self.workers, self.servers, self.ahead], "<i4"),
            "rows": np.array(table, "<i4").reshape(-1, 3),
            "events": events.astype("<i2"),
        }

    @classmethod
    def of(cls, arrays: dict[str, Any]) -> "Orders":
        """The orders in what `arrays` has made; raises ValueError if they are none."""
        workers, servers, ahead = map(int, arrays["run"])
        orders = cls(workers, servers, ahead)
        table, events = arrays["rows"], arrays["events"].astype(np.int16)
        if int(table[:, 2].sum()) != len(events) or servers < 1 or len(table) % servers:
            raise ValueError("its rows are not those of its events")
        ends = np.cumsum(table[:, 2])
        for (epoch, server, length), end in zip(table.tolist(), ends.tolist(), strict=True):
            of_epoch = orders.epochs.setdefault(epoch, [])
            if server == 0:
                of_epoch.append([])
            of_epoch[-1].append(events[end - length : end])
        return orders

    def to_tensor(self) -> Tensor:
        """The bytes of their file, for a checkpoint."""
        file = io.BytesIO()
        np.savez_compressed(file, **self.arrays())
        return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)

    @classmethod
    def of_tensor(cls, content: Tensor) -> "Orders":
        """The orders that a checkpoint has."""
        with np.load(io.BytesIO(content.numpy().tobytes()), allow_pickle=False) as arrays:
            return cls.of(dict(arrays))

    def save(self, path: Path) -> None:
        """Write them into a file of numpy's, compressed: less than 2 bytes per push and server."""
        with whole(path) as file:
            np.savez_compressed(file, **self.arrays())


def load_orders(path: Path) -> Orders:
    """The orders that a file has; raises Refused if it is none."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return Orders.of(dict(arrays))
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, EOFError, KeyError, TypeError, IndexError, AttributeError) as error:
        why = str(error) or type(error).__name__
    except zipfile.BadZipFile as error:
        why = str(error)
    raise Refused(
        f"strategy.order={path} cannot be read as orders of pushes ({why}); give the {FILE} of a "
        "run that was made with strategy.order=live"
    )


class RecordedOrders:
    """The epochs of a run that follows the orders of another, which has had the same recipe."""

    def __init__(self, recipe: Recipe, orders: Orders) -> None:
        self.recipe, self.orders = recipe, orders
        gates = len(make_gates(recipe.strategy, recipe.workers, recipe.tickets))
        if (orders.workers, orders.servers) != (recipe.workers, gates):
            raise Refused(
                f"strategy.order={recipe.strategy.order} has {orders.workers} workers whose pushes "
                f"are handled in {orders.servers} orders, and this recipe has {recipe.workers} and "
                f"{gates}; write the words of the run that it is of"
            )
        self.script = lru_cache(2)(self._script)
        """What the pushes of an epoch read and where they go."""

    def _script(self, epoch: int) -> Script:
        recipe = self.recipe
        if epoch not in self.orders.epochs:
            raise Refused(
                f"strategy.order={recipe.strategy.order} ends with epoch {epoch}, as the run that "
                f"it is of did; write epochs={epoch}"
            )
        return play(
            self.orders.epochs[epoch],
            lambda tickets: make_gates(recipe.strategy, recipe.workers, tickets),
            Tickets(recipe.tickets, ahead=self.orders.ahead),
            recipe.workers,
        )

    def row(self, step: int) -> dict[str, float | list[int]]:
        """What a row of metrics after this step of the run says of the pushes since the row before:
        their staleness, and how many were dropped."""
        epoch, of_epoch = divmod(step, self.recipe.steps_per_epoch)
        return staleness_row(self.script(epoch), of_epoch, self.recipe.log_steps)

    def begin(self, epoch: int) -> float:
        """0: no clock has drawn these orders."""
        return 0.0
