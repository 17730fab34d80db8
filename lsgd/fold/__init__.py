"""Dynamic batching: write a network for one example, and run it on many of different shapes.

    from lsgd.fold import Graph, merge

    def encode(f, tree):                          # f stands in for the network
        if isinstance(tree, int):
            return f.add("leaf", tree)
        return f.add("node", *(encode(f, child) for child in tree))

    graphs = [Graph.record(encode, tree) for tree in trees]     # once
    states, = merge(graphs).apply(network)                  # in every step, a few large calls

The package is independent of lsgd: it needs torch and numpy alone and its imports are relative, so
the folder may be copied. README.md says when dynamic batching is faster.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .merge import merge
from .record import Graph, Node, Recorder
from .schedule import CallSchedule, Ragged, constant
from .unfold import Unfold

__all__ = ["CallSchedule", "Fold", "Graph", "Node", "Ragged", "Recorder", "Unfold", "merge"]


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
