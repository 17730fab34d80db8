"""Sparse rows: of an embedding table only the rows that a step uses are sent.

A push has the ids of these rows, each once, and the sums of their gradients; a reply has the ids
and the new values of all rows that its update changes. A header before them has the number of rows.
Row i is on server i mod S, since tokens are often numbered by frequency, and the first of S equal
ranges would have most of the rows in use.

The updates equal those by whole gradients where a row without gradient does not change, as with
plain SGD. No step reads or writes a whole table.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lsgd.comm import MessagingComm
from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.rules import optim
from lsgd.rules.exact_norm import exact_norm

Wait = Callable[[], None]
HEADER = 2
"""Number of integers in a header.

They are the number of rows that follow, and the number of rows that the server has received over
the network up to this message, from which all processes can compute the traffic.
"""
NUMBER = torch.int64.itemsize
"""Bytes of an integer of a header, and of a row id."""


class TableRows(NamedTuple):
    """Some rows of an embedding table, or of its gradient, with their row ids."""

    ids: Tensor
    """Row ids, int64, shape (rows,)."""
    values: Tensor
    """Values of these rows, shape (rows, width)."""


def sparse_tables(model: nn.Module) -> dict[int, nn.Parameter]:
    """Make a model's embeddings have sparse gradients; return their weights by number.

    The number is that of the parameter. These are the weights of embeddings that no other layer
    shares, since another use would have a dense gradient. Raises UsageError if there is none.
    """
    layers = list(model.modules())
    uses = Counter(id(each) for layer in layers for each in layer.parameters(recurse=False))
    embeddings = [
        layer for layer in layers if isinstance(layer, nn.Embedding) and uses[id(layer.weight)] == 1
    ]
    if not embeddings:
        raise UsageError(
            "strategy.sparse_rows=true needs an embedding table that no other layer shares, and "
            "the model has none; write strategy.sparse_rows=false"
        )
    for layer in embeddings:
        layer.sparse = True
    weights = {id(layer.weight) for layer in embeddings}
    return {
        number: parameter
        for number, parameter in enumerate(optim.trained_parameters(model))
        if id(parameter) in weights
    }


def add_up(parts: Sequence[TableRows]) -> TableRows:
    """Add up embedding rows with equal ids, on the CPU; return the sums ordered by id.

    Values are added in the order of the parts, so that equal parts have bit-equal sums.
    """
    ids, places = torch.cat([part.ids for part in parts]).unique(return_inverse=True)
    values = torch.cat([part.values for part in parts])
    sums = values.new_zeros(len(ids), values.shape[1])
    return TableRows(ids, sums.index_add_(0, places, values))


def take_gradient(table: nn.Parameter) -> TableRows:
    """Return a table's gradient rows of this process on the CPU, summed by id; reset `.grad`."""
    gradient, table.grad = table.grad, None
    if gradient is None:  # no worker of this process had an example
        return _empty(0, table.shape[1], table.dtype)
    return add_up([TableRows(gradient._indices()[0].cpu(), gradient._values().cpu())])


def _empty(count: int, width: int, dtype: torch.dtype) -> TableRows:
    return TableRows(torch.empty(count, dtype=torch.int64), torch.empty(count, width, dtype=dtype))


class ServedTable:
    """Rows of an embedding table that are on one parameter server, as seen by one process."""

    def __init__(
        self,
        table: nn.Parameter,
        recipe: Recipe,
        messenger: MessagingComm,
        found_inf: Tensor,
        *,
        norm: Callable[[], Tensor],
        server: int,
        home: int,
        pushing: Sequence[int],
        on_wire: torch.dtype,
        tag: int,
    ) -> None:
        self.table = table.detach()
        settings = optim.shared_settings(asdict(recipe.optim))
        groups = [{"params": [], "weight_decay": recipe.optim.weight_decay}]
        self.optimizer = optim.optimizer_over_groups(groups, norm=norm, **settings)
        """Optimizer with the recipe's rule, which receives the rows of each update."""
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.messenger, self.tag = messenger, tag
        self.server, self.servers = server, recipe.strategy.servers
        self.home, self.pushing = home, pushing
        self.senders = [rank for rank in pushing if rank != home]
        self.others = [rank for rank in range(messenger.world_size) if rank != home]
        self.on_wire = on_wire
        """Dtype of the gradients in a push."""
        self.rows = {home: _empty(0, table.shape[1], table.dtype)}
        """Received rows by the rank of the sender: pushes at home, elsewhere the home's reply."""
        self.pushed = 0
        """Number of pushed rows that the server received over the network for the last update."""

    def start_push(self, gradient: TableRows) -> list[Wait]:
        """Start sending gradient rows to the server, or receiving them there; return the waits."""
        rank, self.pushed = self.messenger.rank, 0
        own = gradient.ids % self.servers == self.server
        rows = TableRows(gradient.ids[own], gradient.values[own].to(self.on_wire))
        if rank == self.home:
            self.rows[rank] = rows
            return [self._start_receive(sender, self.on_wire) for sender in self.senders]
        return self._start_send(rows, len(rows.ids), self.home) if rank in self.pushing else []

    def add_up(self) -> Tensor:
        """Sum the pushed gradient rows; return the norm of the sum, on the table's device."""
        dtype, device = self.table.dtype, self.table.device
        pushes = [self.rows[rank] for rank in self.pushing]
        ids, values = add_up([TableRows(ids, values.to(dtype)) for ids, values in pushes])
        self.total = TableRows(ids.to(device), values.to(device))
        norm: Tensor = exact_norm(self.total.values)
        return norm

    def update(self, lr: float) -> None:
        """Update the pushed rows of the embedding table by their summed gradient."""
        ids, gradient = self.total
        rows = self.table[ids]
        rows.grad = gradient
        self.optimizer.param_groups[0]["params"] = [rows]
        optim.set_lr(self.optimizer, lr)
        self.optimizer.step()
        self.table[ids] = rows
        self.rows[self.home] = TableRows(ids.cpu(), rows.cpu())

    def start_pull(self) -> list[Wait]:
        """Start sending the server's changed rows to the other processes, or receiving them."""
        if self.messenger.rank != self.home:
            return [self._start_receive(self.home, self.table.dtype)]
        reply = self.rows[self.home]
        return [wait for rank in self.others for wait in self._start_send(reply, self.pushed, rank)]

    def unpack(self) -> None:
        """Write the received rows, which the server has changed, into the embedding table."""
        ids, values = (each.to(self.table.device) for each in self.rows[self.home])
        self.table[ids] = values

    def nbytes(self) -> int:
        """Return the bytes of rows and headers that the server got and sent for the last update."""
        width = self.table.shape[1]
        push, reply = (
            NUMBER + width * type_.itemsize for type_ in (self.on_wire, self.table.dtype)
        )
        replied = len(self.rows[self.home].ids) * len(self.others)
        headers = len(self.senders) + len(self.others)
        return headers * HEADER * NUMBER + self.pushed * push + replied * reply

    def _start_send(self, rows: TableRows, pushed: int, receiver: int) -> list[Wait]:
        # Messages with the same tag arrive in order.
        return [
            self.messenger.start_send(message, receiver, self.tag)
            for message in (torch.tensor([len(rows.ids), pushed]), *rows)
        ]

    def _start_receive(self, sender: int, dtype: torch.dtype) -> Wait:
        """Start receiving a header and table rows; return a function that waits for them."""
        header = torch.empty(HEADER, dtype=torch.int64)
        wait = self.messenger.start_receive(header, sender, self.tag)

        def receive() -> None:
            wait()
            count, pushed = header.tolist()
            rows = _empty(count, self.table.shape[1], dtype)
            for each in [self.messenger.start_receive(part, sender, self.tag) for part in rows]:
                each()
            self.rows[sender] = rows
            self.pushed += pushed

        return receive
