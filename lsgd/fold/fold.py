"""The interface of TorchFold (Polosukhin 2017): record calls of many examples, then run batches."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .merge import merge
from .record import Node, Recorder
from .schedule import constant


class Fold(Recorder):
    """A recorder of a network's calls for a batch of examples, to run as few batched calls.

    Arguments are moved to the device of the module's parameters, so `cuda` has no effect; it exists
    for programs written for TorchFold.
    """

    def __init__(self, *, cuda: bool = False) -> None:
        super().__init__()

    def apply(self, module: nn.Module, outputs: Sequence[Sequence[Any]]) -> list[Tensor]:
        """Run all recorded calls batched on a module; return a tensor for each list of outputs.

        A list has nodes, ints or tensors; its tensor has a row for each member.
        """
        lists = [[*members] for members in outputs]
        of_nodes = [any(isinstance(member, Node) for member in members) for members in lists]
        nodes = [members for members, recorded in zip(lists, of_nodes, strict=True) if recorded]
        made = iter(merge([self.graph(nodes)]).apply(module))
        return [
            next(made) if recorded else constant(members, module)
            for members, recorded in zip(lists, of_nodes, strict=True)
        ]
