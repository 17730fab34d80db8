"""The interface of TorchFold (Polosukhin 2017): record calls of many examples, then make them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .merge import merge
from .record import Node, Recorder
from .schedule import constant


class Fold(Recorder):
    """Records the calls of a batch of examples, and makes them at the end, as few as possible.

    Arguments go where the parameters of the module are, so `cuda` has nothing left to say; it is
    there for programs that were written for TorchFold.
    """

    def __init__(self, *, cuda: bool = False) -> None:
        super().__init__()

    def apply(self, module: nn.Module, outputs: Sequence[Sequence[Any]]) -> list[Tensor]:
        """Make all recorded calls on a module: a tensor for each list of nodes, or of ints or
        tensors, with a row for each of its members."""
        lists = [[*members] for members in outputs]
        of_nodes = [any(isinstance(member, Node) for member in members) for members in lists]
        nodes = [members for members, recorded in zip(lists, of_nodes, strict=True) if recorded]
        made = iter(merge([self.graph(nodes)]).apply(module))
        return [
            next(made) if recorded else constant(members, module)
            for members, recorded in zip(lists, of_nodes, strict=True)
        ]
