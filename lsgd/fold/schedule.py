"""Makes the calls of a plan: a few large ones, with plain operations of torch in between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


class Ragged(NamedTuple):
    """An argument that is a list of nodes, of many calls at once."""

    rows: Tensor
    """The members of all lists, one list behind the other: shape (members, …)."""
    owner: Tensor
    """The call, counted from 0, that each of them belongs to: int64, shape (members,), rising."""
    calls: int
    """The number of calls; each has at least one member."""

    def sum(self, values: Tensor) -> Tensor:
        """The sum of some values of the members, shape (members, …), over each list: (calls, …)."""
        total = values.new_zeros(self.calls, *values.shape[1:])
        return total.index_add(0, self.owner, values)


class Ints(NamedTuple):
    """An argument of ints: their piece of the index."""

    piece: int


class Stacked(NamedTuple):
    """An argument of tensors: their numbers."""

    numbers: tuple[int, ...]


class TakenRow(NamedTuple):
    """An argument of nodes: its number among those of the launch."""

    number: int


class Lists(NamedTuple):
    """An argument of lists: its number among those of nodes, and the piece with their owners."""

    number: int
    owner: int


class Shared(NamedTuple):
    """An argument that all calls share: the slot it comes to."""

    slot: int


Argument = Ints | Stacked | TakenRow | Lists | Shared | None
"""Where an argument of a launch comes from; None is an empty list."""


class Rows(NamedTuple):
    """Rows that come to a slot from several launches, for some arguments of a launch."""

    slot: int
    back: int | None
    """The piece of the index that brings them from the order in which they come to that of the
    calls; None if it is the same."""
    arguments: int
    """The number of arguments, each of as many rows, that lie one behind the other."""


class Give(NamedTuple):
    """Rows that one launch gives to others."""

    part: int
    parts: int
    """The part of the result, of so many that it should have; 0 of 0 is the result itself."""
    rows: int | None
    """The piece of the index with the rows, in the order of those who get them; None for all rows
    as they are."""
    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    """How many rows each slot gets; nothing for the whole, whatever its shape."""


class BatchedCall(NamedTuple):
    """One call of a method for many recorded ones, or what makes an output of the graphs."""

    op: str | int
    calls: int
    rows: tuple[Rows, ...]
    arguments: tuple[Argument, ...]
    gives: tuple[Give, ...]


@dataclass(frozen=True, eq=False)
class CallSchedule:
    """The calls of many graphs, ready to be made on any module that has the methods.

    It may be made by a loader's process, sent to another one, and applied any number of times. All
    that happens between the calls are permutations, `split` and `cat`, so that hooks, double
    backward, checkpointing and autocast work as for a network without it.
    """

    steps: tuple[BatchedCall, ...]
    index: Tensor
    """All numbers that are needed: int64, one piece behind the other."""
    lengths: tuple[int, ...]
    """The length of each piece."""
    tensors: tuple[Tensor, ...]
    slots: int
    sizes: tuple[NDArray[np.int64], ...]
    """The rows of each output that are of each graph, shape (graphs,)."""

    @property
    def launches(self) -> int:
        """How many times a method of the module will be called."""
        return sum(isinstance(launch.op, str) for launch in self.steps)

    def to(self, device: torch.device | str) -> "CallSchedule":
        """The same with its numbers on a device, by one copy."""
        return replace(self, index=self.index.to(device, non_blocking=True))

    def apply(self, module: nn.Module) -> list[Tensor]:
        """The outputs of the graphs: of each one tensor, the rows of all graphs one behind the
        other, as `sizes` has them.

        Numbers and tensors among the arguments go where the module's parameters are. Raises
        ValueError if a method does not return a row for each call, or rows of different shapes
        would have to be one argument.
        """
        device = device_of(module)
        # A copy, as a method may change its numbers in place: unknown words to one word, say.
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
                    case TakenRow(number):
                        arguments.append(nodes[number])
                    case Ints(piece):
                        arguments.append(index[piece])
                    case Lists(number, owner):
                        arguments.append(Ragged(nodes[number], index[owner], launch.calls))
                    case Shared(slot):
                        arguments += slots[slot]
                    case Stacked(numbers):
                        stacked = torch.cat([self.tensors[number] for number in numbers])
                        arguments.append(stacked.to(device))
                    case None:
                        arguments.append(None)
            result = getattr(module, launch.op)(*arguments)
            for give in launch.gives:
                _give(launch, give, result, slots, index)
        return [outputs[number] for number in sorted(outputs)]


def _read(
    launch: BatchedCall, rows: Rows, slots: list[list[Tensor]], index: Sequence[Tensor]
) -> Sequence[Tensor]:
    """What has come to the slot of some rows, as the arguments that it makes."""
    pieces, slots[rows.slot] = slots[rows.slot], []
    whole = pieces[0]
    if len(pieces) > 1:
        if _differ(pieces):
            kinds = sorted({f"{tuple(piece.shape[1:])} of {piece.dtype}" for piece in pieces})
            raise ValueError(
                f"an argument of {_named(launch)} gets rows of different shapes, "
                f"{' and '.join(kinds)}; give the calls that take them names of their own"
            )
        whole = torch.cat(pieces)
    if rows.back is not None:
        whole = whole.index_select(0, index[rows.back])
    if rows.arguments == 1:
        return (whole,)
    # Not with -1, which is refused where a row has no numbers.
    calls = len(whole) // rows.arguments
    return whole.view(rows.arguments, calls, *whole.shape[1:]).unbind(0)


def _differ(pieces: Sequence[Tensor]) -> bool:
    """Whether rows cannot be put together. Autocast lets types differ, and cat takes the wider."""
    first = pieces[0]
    shape, dtype = first.shape[1:], first.dtype
    if all(piece.shape[1:] == shape and piece.dtype is dtype for piece in pieces):
        return False
    same_shape = all(piece.shape[1:] == shape for piece in pieces)
    floating = all(piece.is_floating_point() for piece in pieces)
    return not (same_shape and floating and torch.is_autocast_enabled(first.device.type))


def _give(
    launch: BatchedCall, give: Give, result: Any, slots: list[list[Tensor]], index: Sequence[Tensor]
) -> None:
    """Bring a part of a result to those who take it."""
    if give.parts:
        if not isinstance(result, tuple | list) or len(result) != give.parts:
            number = len(result) if isinstance(result, tuple | list) else "no tuple of"
            raise ValueError(
                f"{launch.op!r} returned {number} tensors where split({give.parts}) is asked of "
                "it; let both say the same number"
            )
        result = result[give.part]
    if not isinstance(result, Tensor):
        raise ValueError(
            f"{launch.op!r} returned {type(result).__name__} where a tensor is asked of it; use "
            "split(…) on its node to name the members of a tuple"
        )
    if not give.lengths:
        slots[give.slots[0]].append(result)
        return
    if not result.ndim or len(result) != launch.calls:
        raise ValueError(
            f"{launch.op!r} returned shape {tuple(result.shape)} for {launch.calls} calls; it has "
            "to return a row for each"
        )
    if give.rows is not None:
        result = result.index_select(0, index[give.rows])
    pieces = result.split(give.lengths) if len(give.lengths) > 1 else (result,)
    for slot, piece in zip(give.slots, pieces, strict=True):
        slots[slot].append(piece)


def _named(launch: BatchedCall) -> str:
    return f"output {launch.op}" if isinstance(launch.op, int) else repr(launch.op)


def constant(values: Sequence[Any], module: nn.Module) -> Tensor:
    """Ints as a tensor, or tensors of shape (1, …) in one, where the module's parameters are.

    Raises TypeError for other members of an output, which torch would cut to ints, or take for
    several rows.
    """
    rows = [value for value in values if isinstance(value, Tensor) and value.shape[:1] == (1,)]
    if rows and len(rows) == len(values):
        return torch.cat(rows).to(device_of(module))
    for value in values:
        if not isinstance(value, int | np.integer):
            tensor = isinstance(value, Tensor)
            shown = f"a tensor of shape {tuple(value.shape)}" if tensor else repr(value)
            raise TypeError(
                f"an output has {shown}; let it have nodes alone, ints alone, or tensors of shape "
                "(1, …) alone"
            )
    return torch.tensor(values, dtype=torch.int64, device=device_of(module))


def device_of(module: nn.Module) -> torch.device:
    """Where the parameters of a module are; the CPU if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
