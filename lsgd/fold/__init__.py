"""Dynamic batching: write a network for one example, and run it on many of different shapes.

    from lsgd.fold import Graph, merge

    def encode(f, tree):                          # f stands in for the network
        if isinstance(tree, int):
            return f.add("leaf", tree)
        return f.add("node", *(encode(f, child) for child in tree))

    graphs = [Graph.of(encode, tree) for tree in trees]     # once
    states, = merge(graphs).apply(network)                  # in every step, a few large calls

A library of its own, which needs torch and numpy alone, and may be copied as a folder: its imports
are relative. README.md says when it pays and when not.
"""

from .fold import Fold
from .merge import merge
from .record import Graph, Node, Recorder
from .schedule import CallSchedule, Ragged
from .unfold import Unfold

__all__ = ["CallSchedule", "Fold", "Graph", "Node", "Ragged", "Recorder", "Unfold", "merge"]
