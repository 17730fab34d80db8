"""Sparse rows: of a table, the weights of an embedding, only the rows that a step uses travel.

A push has the ids of these rows, each once, and the sums of their gradients; a reply has the ids
and the new values of all rows that its update changes. A header ahead of them says how many they
are. Row i is on server i mod S, since tokens are often numbered by how frequent they are, and the
first of S equal ranges would have most of the rows in use.

The updates are those by whole gradients where a row without gradient stands still: with plain SGD.
No step goes over a whole table.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lsgd.comm import Messenger
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.rules import optim

Wait = Callable[[], None]
HEADER = 2
"""The whole numbers of a header: the rows behind it, and the rows that the server has got over the
network by it or before it, so that all processes can say what has travelled."""
NUMBER = torch.int64.itemsize
"""The bytes of a number in a header, and of an id."""


class TableRows(NamedTuple):
    """Some rows of a table, or of its gradient."""

    ids: Tensor
    """Which rows they are, int64, shape (rows,)."""
    values: Tensor
    """What is in them, shape (rows, width)."""


def sparse_tables(model: nn.Module) -> dict[int, nn.Parameter]:
    """The tables of a model by their numbers among its parameters; their gradients are sparse from
    now on.

    They are the weights of embeddings that no other layer shares, since another use of them would
    have a dense gradient. Raises Refused if there is none.
    """
    layers = list(model.modules())
    uses = Counter(id(each) for layer in layers for each in layer.parameters(recurse=False))
    embeddings = [
        layer for layer in layers if isinstance(layer, nn.Embedding) and uses[id(layer.weight)] == 1
    ]
    if not embeddings:
        raise Refused(
            "strategy.sparse_rows=true is for the tables of embeddings that no other layer shares, "
            "and the model has none; write strategy.sparse_rows=false"
        )
    for layer in embeddings:
        layer.sparse = True
    weights = {id(layer.weight) for layer in embeddings}
    return {
        number: parameter
        for number, parameter in enumerate(model.parameters())
        if id(parameter) in weights
    }


def add_up(parts: Sequence[TableRows]) -> TableRows:
    """The rows of all parts on the CPU, each once and by rising ids, with the sums of their values,
    which are added in their order: the same parts have the same sum, bit by bit."""
    ids, places = torch.cat([part.ids for part in parts]).unique(return_inverse=True)
    values = torch.cat([part.values for part in parts])
    sums = values.new_zeros(len(ids), values.shape[1])
    return TableRows(ids, sums.index_add_(0, places, values))


def take_gradient(table: nn.Parameter) -> TableRows:
    """The rows of the gradient that the passes of this process have made, added up on the CPU; the
    table has no gradient any more."""
    gradient, table.grad = table.grad, None
    if gradient is None:  # no worker of this process had an example
        return _empty(0, table.shape[1], table.dtype)
    return add_up([TableRows(gradient._indices()[0].cpu(), gradient._values().cpu())])


def _empty(count: int, width: int, dtype: torch.dtype) -> TableRows:
    return TableRows(torch.empty(count, dtype=torch.int64), torch.empty(count, width, dtype=dtype))


class ServedTable:
    """The rows of a table that one server has, as one process sees them."""

    def __init__(
        self,
        table: nn.Parameter,
        recipe: Recipe,
        messenger: Messenger,
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
        self.optimizer = optim.over_groups(groups, norm=norm, **settings)
        """The recipe's rule, which is given the rows of each update."""
        self.optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        self.messenger, self.tag = messenger, tag
        self.server, self.servers = server, recipe.strategy.servers
        self.home, self.pushing = home, pushing
        self.senders = [rank for rank in pushing if rank != home]
        self.others = [rank for rank in range(messenger.world_size) if rank != home]
        self.on_wire = on_wire
        """The type of the gradients in a push."""
        self.rows = {home: _empty(0, table.shape[1], table.dtype)}
        """At home the pushes, by the rank of their process, and elsewhere the reply, by the rank of
        the server's."""
        self.pushed = 0
        """The rows of all pushes that came over the network for the last update."""

    def start_push(self, gradient: TableRows) -> list[Wait]:
        """Begin to send the server its rows of this process's gradient; at home, to receive those
        of the other processes."""
        rank, self.pushed = self.messenger.rank, 0
        own = gradient.ids % self.servers == self.server
        rows = TableRows(gradient.ids[own], gradient.values[own].to(self.on_wire))
        if rank == self.home:
            self.rows[rank] = rows
            return [self._start_receive(sender, self.on_wire) for sender in self.senders]
        return self._start_send(rows, len(rows.ids), self.home) if rank in self.pushing else []

    def add_up(self) -> Tensor:
        """Add up the pushes; the norm of their sum, on the table's device."""
        dtype, device = self.table.dtype, self.table.device
        pushes = [self.rows[rank] for rank in self.pushing]
        ids, values = add_up([TableRows(ids, values.to(dtype)) for ids, values in pushes])
        self.total = TableRows(ids.to(device), values.to(device))
        norm: Tensor = torch.linalg.vector_norm(self.total.values)
        return norm

    def update(self, lr: float) -> None:
        """Make the update of the rows that were pushed, by their sum."""
        ids, gradient = self.total
        rows = self.table[ids]
        rows.grad = gradient
        self.optimizer.param_groups[0]["params"] = [rows]
        optim.set_lr(self.optimizer, lr)
        self.optimizer.step()
        self.table[ids] = rows
        self.rows[self.home] = TableRows(ids.cpu(), rows.cpu())

    def start_pull(self) -> list[Wait]:
        """Begin to send the changed rows to all other processes, or to receive them."""
        if self.messenger.rank != self.home:
            return [self._start_receive(self.home, self.table.dtype)]
        reply = self.rows[self.home]
        return [wait for rank in self.others for wait in self._start_send(reply, self.pushed, rank)]

    def unpack(self) -> None:
        """Write the changed rows into the table."""
        ids, values = (each.to(self.table.device) for each in self.rows[self.home])
        self.table[ids] = values

    def nbytes(self) -> int:
        """The bytes that the server got and gave over the network for the last update, with the
        headers."""
        width = self.table.shape[1]
        push, reply = (
            NUMBER + width * type_.itemsize for type_ in (self.on_wire, self.table.dtype)
        )
        replied = len(self.rows[self.home].ids) * len(self.others)
        headers = len(self.senders) + len(self.others)
        return headers * HEADER * NUMBER + self.pushed * push + replied * reply

    def _start_send(self, rows: TableRows, pushed: int, receiver: int) -> list[Wait]:
        # Messages with one tag come in their order.
        return [
            self.messenger.start_send(message, receiver, self.tag)
            for message in (torch.tensor([len(rows.ids), pushed]), *rows)
        ]

    def _start_receive(self, sender: int, dtype: torch.dtype) -> Wait:
        """Begin to receive a header; what is returned waits for it and for the rows behind it."""
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
