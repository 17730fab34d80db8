"""The execution of planned calls: a few batched calls, with plain torch operations between them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Ragged(NamedTuple):
    """A batch of lists of nodes, one list for each call: the rows of all members, concatenated."""

    rows: Tensor
    """The members of all lists, concatenated: shape (members, …)."""
    owner: Tensor
    """The call, counted from 0, to which each member belongs: ascending int64, shape (members,)."""
    calls: int
    """The number of calls; each has at least one member."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum values of the members, shape (members, …), over each list and return (calls, …)."""
        total = values.new_zeros(self.calls, *values.shape[1:])
        return total.index_add(0, self.owner, values)


class IntArgument(NamedTuple):
    """The source of a batched argument of ints: the number of a piece of the index."""

    piece: int


class StackedArgument(NamedTuple):
    """The source of a batched argument of tensors: the numbers of the tensors to concatenate."""

    numbers: tuple[int, ...]


class ArgumentRow(NamedTuple):
    """The source of a batched argument of nodes: its number among the gathered arguments."""

    number: int


class ListArgument(NamedTuple):
    """The source of a batched argument of lists: its gathered members, and the owners of these.

    They are given by a number among the gathered arguments, and by a piece of the index.
    """

    number: int
    owner: int


class SharedArgument(NamedTuple):
    """The source of an argument that all calls of a batched call share: the slot with its value."""

    slot: int


Argument = IntArgument | StackedArgument | ArgumentRow | ListArgument | SharedArgument | None
"""The source of an argument of a batched call; None is an empty list."""


class GatheredRows(NamedTuple):
    """Result rows of earlier batched calls, gathered in a slot as arguments of a later one."""

    slot: int
    restore_order: int | None
    """The piece of the index that restores the order of the calls; None if the order is right."""
    arguments: int
    """The number of arguments, with equally many rows, that are concatenated."""


class OutputTransfer(NamedTuple):
    """The transfer of a batched call's result, or of rows of it, to the slots of later calls."""

    part: int
    parts: int
    """The number of parts that the result must have; part 0 of 0 is the result itself."""
    rows: int | None
    """The piece of the index with the rows in the slots' order; None for all rows in order."""
    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    """The number of rows for each slot; empty if the result is transferred unchanged."""


class BatchedCall(NamedTuple):
    """One call of a method for many recorded calls, or the assembly of an output of the graphs."""

    op: str | int
    calls: int
    rows: tuple[GatheredRows, ...]
    arguments: tuple[Argument, ...]
    transfers: tuple[OutputTransfer, ...]


@dataclass(frozen=True, eq=False)
class CallSchedule:
    """The planned batched calls of many graphs, which run on any module that has the methods.

    A loader's process may plan them, send them to another process, and that one may apply them any
    number of times. Between the calls there are only permutations, `split` and `cat`, so hooks,
    double backward, checkpointing and autocast work as for a network without batching.
    """

    steps: tuple[BatchedCall, ...]
    index: Tensor
    """All index arrays and ints, concatenated: int64."""
    lengths: tuple[int, ...]
    """The length of each piece of the index."""
    tensors: tuple[Tensor, ...]
    slots: int
    sizes: tuple[NDArray[np.int64], ...]
    """The number of rows of each output that belong to each graph, shape (graphs,)."""

    @property
    def launches(self) -> int:
        """The number of calls of the module's methods when the schedule runs."""
        return sum(isinstance(launch.op, str) for launch in self.steps)

    def to(self, device: torch.device | str) -> "CallSchedule":
        """Return a copy of this schedule with its index arrays on a device, transferred at once."""
        # A Mac's GPU would read the host's memory when the copy runs, when it may be freed.
        is_async = torch.device(device).type != "mps"
        return replace(self, index=self.index.to(device, non_blocking=is_async))

    def apply(self, module: nn.Module) -> list[Tensor]:
        """Run the batched calls on a module and return a tensor for each output of the graphs.

        It has the rows of all graphs, concatenated; `sizes` has their numbers. Ints and tensors are
        moved to the device of the module's parameters. Raises ValueError if a method does not
        return a row for each call, or if rows of different shapes would form one argument.
        """
        device = device_of(module)
        # A copy, since a method may change its ints in place, for example to replace unknown words.
        index = self.index.to(device, copy=True).split(self.lengths)
        slots: list[list[Tensor]] = [[] for _ in range(self.slots)]
        outputs: dict[int, Tensor] = {}
        for launch in self.steps:
            nodes = [each for rows in launch.rows for each in _read(launch, rows, slots, index)]
            if isinstance(launch.op, int):
                outputs[launch.op] = nodes[0] if nodes else torch.empty(0, device=device)
                continue
            arguments: list[Any] = []
            for argument in launch.arguments:
                match argument:
                    case ArgumentRow(number):
                        arguments.append(nodes[number])
                    case IntArgument(piece):
                        arguments.append(index[piece])
                    case ListArgument(number, owner):
                        arguments.append(Ragged(nodes[number], index[owner], launch.calls))
                    case SharedArgument(slot):
                        arguments += slots[slot]
                    case StackedArgument(numbers):
                        stacked = torch.cat([self.tensors[number] for number in numbers])
                        arguments.append(stacked.to(device))
                    case None:
                        arguments.append(None)
            result = getattr(module, launch.op)(*arguments)
            for give in launch.transfers:
                _give(launch, give, result, slots, index)
        return [outputs[number] for number in sorted(outputs)]


def _read(
    launch: BatchedCall, rows: GatheredRows, slots: list[list[Tensor]], index: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Take the rows gathered in a slot, and return the batched arguments that they form."""
    pieces, slots[rows.slot] = slots[rows.slot], []
    whole = pieces[0]
    if len(pieces) > 1:
        if _differ(pieces):
            kinds = sorted({f"{tuple(piece.shape[1:])} of {piece.dtype}" for piece in pieces})
            raise ValueError(
                f"an argument of {_named(launch)} gets rows of different shapes, "
                f"{' and '.join(kinds)}; use another method name for each shape"
            )
        whole = torch.cat(pieces)
    if rows.restore_order is not None:
        whole = whole.index_select(0, index[rows.restore_order])
    if rows.arguments == 1:
        return (whole,)
    # Not with -1, which view rejects if a row has no elements.
    calls = len(whole) // rows.arguments
    return whole.view(rows.arguments, calls, *whole.shape[1:]).unbind(0)


def _differ(pieces: Sequence[Tensor]) -> bool:
    """Return whether tensors cannot be concatenated because of their shapes or types.

    Within autocast types may differ, and cat takes the wider one.
    """
    first = pieces[0]
    shape, dtype = first.shape[1:], first.dtype
    if all(piece.shape[1:] == shape and piece.dtype is dtype for piece in pieces):
        return False
    same_shape = all(piece.shape[1:] == shape for piece in pieces)
    floating = all(piece.is_floating_point() for piece in pieces)
    return not (same_shape and floating and torch.is_autocast_enabled(first.device.type))


def _give(
    launch: BatchedCall,
    give: OutputTransfer,
    result: Any,
    slots: list[list[Tensor]],
    index: Sequence[Tensor],
) -> None:
    """Transfer a part of a batched call's result to the slots that take it."""
    if give.parts:
        if not isinstance(result, tuple | list) or len(result) != give.parts:
            number = len(result) if isinstance(result, tuple | list) else "no tuple of"
            raise ValueError(
                f"{launch.op!r} returned {number} tensors, not the {give.parts} of "
                f"split({give.parts}); use the same number in both"
            )
        result = result[give.part]
    if not isinstance(result, Tensor):
        raise ValueError(
            f"{launch.op!r} returned {type(result).__name__} instead of a tensor; use split(…) "
            "on its node for the members of a tuple"
        )
    if not give.lengths:
        slots[give.slots[0]].append(result)
        return
    if not result.ndim or len(result) != launch.calls:
        raise ValueError(
            f"{launch.op!r} returned shape {tuple(result.shape)} for {launch.calls} calls; "
            "return one row for each call"
        )
    if give.rows is not None:
        result = result.index_select(0, index[give.rows])
    pieces = result.split(give.lengths) if len(give.lengths) > 1 else (result,)
    for slot, piece in zip(give.slots, pieces, strict=True):
        slots[slot].append(piece)


def _named(launch: BatchedCall) -> str:
    return f"output {launch.op}" if isinstance(launch.op, int) else repr(launch.op)


def constant(values: Sequence[Any], module: nn.Module) -> Tensor:
    """Convert ints, or tensors with one row, into one tensor on the device of the module.

    The tensors have shape (1, …). Raises TypeError for other values, which torch would truncate to
    ints or treat as several rows.
    """
    rows = [value for value in values if isinstance(value, Tensor) and value.shape[:1] == (1,)]
    if rows and len(rows) == len(values):
        return torch.cat(rows).to(device_of(module))
    for value in values:
        if not isinstance(value, int | np.integer):
            tensor = isinstance(value, Tensor)
            shown = f"a tensor of shape {tuple(value.shape)}" if tensor else repr(value)
            raise TypeError(
                f"an output has {shown}; use only nodes, only ints, or only tensors of shape (1, …)"
            )
    return torch.tensor(values, dtype=torch.int64, device=device_of(module))


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first parameter, or the CPU if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
