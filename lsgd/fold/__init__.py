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

from .fold import Fold
from .merge import merge
from .record import Graph, Node, Recorder
from .schedule import CallSchedule, Ragged
from .unfold import Unfold

__all__ = ["CallSchedule", "Fold", "Graph", "Node", "Ragged", "Recorder", "Unfold", "merge"]
