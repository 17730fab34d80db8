"""The interface of Fold without batching, to debug a network or to compare results."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .record import as_int, check_one_row
from .schedule import Ragged, constant, device_of


class NodeOutput:
    """The result of a method call that has been run, in place of a recorded node."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def split(self, count: int) -> "tuple[NodeOutput, ...]":
        """Return a node for each member of the tuple of `count` tensors that this call returned."""
        if not isinstance(self.value, tuple | list) or len(self.value) != count:
            number = len(self.value) if isinstance(self.value, tuple | list) else "no tuple of"
            raise ValueError(f"a call returned {number} tensors, not the {count} of split({count})")
        return tuple(NodeOutput(value) for value in self.value)

    def nobatch(self) -> "NodeOutput":
        """Return this node, since its single call gets the value unchanged."""
        return self


class Unfold:
    """A counterpart of Fold without batching, which runs each call on one module as it is added.

    Methods get the same arguments as from a Fold, with one row, so breakpoints and errors are at
    the call that causes them. `cuda` exists for programs written for TorchFold.
    """

    def __init__(self, module: nn.Module, *, cuda: bool = False) -> None:
        self._module, self._device = module, device_of(module)

    def add(self, op: str, *args: Any) -> NodeOutput:
        """Run the module's method `op` with these arguments, and return the node of its result.

        The arguments are those of Fold.add.
        """
        return NodeOutput(getattr(self._module, op)(*(self._value(op, arg) for arg in args)))

    def apply(self, module: nn.Module, outputs: Sequence[Sequence[Any]]) -> list[Tensor]:
        """Concatenate each list of nodes, ints or tensors of the outputs into one tensor.

        The nodes are of calls on this module. Raises ValueError if the module is another one than
        Unfold's.
        """
        if module is not self._module:
            raise ValueError(
                "apply() got a module other than that of Unfold(), which made the calls"
            )
        return [self._output([*each]) for each in outputs]

    def _output(self, members: list[Any]) -> Tensor:
        if any(isinstance(member, NodeOutput) for member in members):
            return torch.cat([_made(member, "an output") for member in members])
        return constant(members, self._module)

    def _value(self, op: str, arg: Any) -> Any:
        if isinstance(arg, NodeOutput):
            return arg.value
        if isinstance(arg, Tensor):
            return check_one_row(op, arg).to(self._device)
        if not isinstance(arg, list | tuple):
            number = as_int(op, arg)
            return torch.tensor([number], dtype=torch.int64, device=self._device)
        if not arg:
            return None
        rows = torch.cat([_made(member, f"a list argument of {op!r}") for member in arg])
        return Ragged(rows, torch.zeros(len(rows), dtype=torch.int64, device=self._device), 1)


def _made(member: Any, place: str) -> Any:
    """Return the value of a node in a list, or raise TypeError for anything but a node."""
    if not isinstance(member, NodeOutput):
        raise TypeError(f"{place} has {member!r}, and may hold only nodes")
    return member.value
