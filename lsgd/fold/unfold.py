"""The interface of Fold, with every call made at once: to debug a network, or to compare with."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .record import one_row, whole_number
from .schedule import Ragged, constant, device_of


class MadeNode:
    """What a call has given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def split(self, count: int) -> "tuple[MadeNode, ...]":
        """The members of the tuple of `count` tensors that the call has given."""
        if not isinstance(self.value, tuple | list) or len(self.value) != count:
            number = len(self.value) if isinstance(self.value, tuple | list) else "no tuple of"
            raise ValueError(
                f"a call returned {number} tensors where split({count}) is asked of it"
            )
        return tuple(MadeNode(value) for value in self.value)

    def nobatch(self) -> "MadeNode":
        """This node: there is one call, which gets the value as it is."""
        return self


class Unfold:
    """Makes each call as it is added, on one module.

    Methods get what they get from a Fold, with one row; so breakpoints and errors are where they
    belong. `cuda` is there for programs that were written for TorchFold.
    """

    def __init__(self, module: nn.Module, *, cuda: bool = False) -> None:
        self._module, self._device = module, device_of(module)

    def add(self, op: str, *args: Any) -> MadeNode:
        """Make a call of the module's method `op`, with the arguments of Fold.add."""
        return MadeNode(getattr(self._module, op)(*(self._value(op, arg) for arg in args)))

    def apply(self, module: nn.Module, outputs: Sequence[Sequence[Any]]) -> list[Tensor]:
        """A tensor for each list of nodes, ints or tensors; the module is the one of all calls."""
        if module is not self._module:
            raise ValueError("apply() is given another module than Unfold(), which made the calls")
        return [self._output([*each]) for each in outputs]

    def _output(self, members: list[Any]) -> Tensor:
        if any(isinstance(member, MadeNode) for member in members):
            return torch.cat([_made(member, "an output") for member in members])
        return constant(members, self._module)

    def _value(self, op: str, arg: Any) -> Any:
        if isinstance(arg, MadeNode):
            return arg.value
        if isinstance(arg, Tensor):
            return one_row(op, arg).to(self._device)
        if not isinstance(arg, list | tuple):
            number = whole_number(op, arg)
            return torch.tensor([number], dtype=torch.int64, device=self._device)
        if not arg:
            return None
        rows = torch.cat([_made(member, f"a list among the arguments of {op!r}") for member in arg])
        return Ragged(rows, torch.zeros(len(rows), dtype=torch.int64, device=self._device), 1)


def _made(member: Any, place: str) -> Any:
    """The value of a node in a list of nodes; anything else is a TypeError."""
    if not isinstance(member, MadeNode):
        raise TypeError(f"{place} has {member!r}, and is of nodes alone")
    return member.value
