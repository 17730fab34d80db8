"""TreeLSTMs (Tai et al. 2015), which classify each node of a tree from the words below it.

lsgd.fold batches calls of the methods `leaf` and `node`. They return states, in which h and c are
concatenated, shape (2 width,); `scores` takes any number of states.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.fold import Ragged, Recorder, Unfold


class TreeLSTM(nn.Module, ABC):
    """The base class of tree-structured LSTMs, with the cell of leaves and the logits of nodes."""

    def __init__(self, vocabulary_size: int, classes: int, *, embedding: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding)
        self.input = nn.Linear(embedding, 3 * width)
        self.make_inner_layers(width)
        self.fc = nn.Linear(width, classes)

    @abstractmethod
    def make_inner_layers(self, width: int) -> None:
        """Create the layers that compute the states of inner nodes."""

    @staticmethod
    @abstractmethod
    def node_arguments(left: Any, right: Any) -> tuple[Any, ...]:
        """Return the states of two children as the arguments of the method `node`."""

    def leaf(self, word: Tensor) -> Tensor:
        """Compute the states of leaves with these tokens, shape (leaves, 2 width)."""
        return self.read(self.embedding(word))

    def read(self, vector: Tensor) -> Tensor:
        """Compute the states of leaves from their tokens' embeddings, (leaves, embedding)."""
        i, o, u = self.input(vector).chunk(3, 1)
        return _state(o, i.sigmoid() * u.tanh())

    def scores(self, state: Tensor) -> Tensor:
        """Compute the class logits of nodes from their states, shape (nodes, classes)."""
        h, _ = state.chunk(2, 1)
        scores: Tensor = self.fc(h)
        return scores


class BinaryTreeLSTM(TreeLSTM):
    """The N-ary TreeLSTM with two children (equations 9 to 14, N = 2) and tokens at leaves only.

    Each child has weights of its own. Leaves and inner nodes have different biases, as have the two
    forget gates, as in the authors' code.
    """

    def make_inner_layers(self, width: int) -> None:
        """Create one linear layer for all gates of an inner node with two children.

        They are those of input, output and update, and a forget gate for each child.
        """
        self.gates = nn.Linear(2 * width, 5 * width)

    @staticmethod
    def node_arguments(left: Any, right: Any) -> tuple[Any, ...]:
        """Return the states of two children as two arguments of the method `node`."""
        return left, right

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute the states of inner nodes from those of both children, each (nodes, 2 width)."""
        (h_left, c_left), (h_right, c_right) = left.chunk(2, 1), right.chunk(2, 1)
        i, o, u, f_left, f_right = self.gates(torch.cat((h_left, h_right), 1)).chunk(5, 1)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * c_left + f_right.sigmoid() * c_right
        return _state(o, c)


class ChildSumTreeLSTM(TreeLSTM):
    """The child-sum TreeLSTM (equations 2 to 8) with tokens at leaves only.

    All children share their weights, so that their order has no effect and their number is
    arbitrary. Leaves and inner nodes have different biases.
    """

    def make_inner_layers(self, width: int) -> None:
        """Create linear layers on the sum of the children's h, and for each child's forget gate."""
        self.gates = nn.Linear(width, 3 * width)
        self.forget = nn.Linear(width, width)

    @staticmethod
    def node_arguments(left: Any, right: Any) -> tuple[Any, ...]:
        """Return the states of two children as one list, the argument of the method `node`."""
        return ((left, right),)

    def node(self, children: Ragged) -> Tensor:
        """Compute the states of inner nodes from any number of children each, (nodes, 2 width)."""
        h, c = children.rows.chunk(2, 1)
        kept = self.forget(h).sigmoid() * c
        h, kept = children.sum(torch.cat((h, kept), 1)).chunk(2, 1)
        i, o, u = self.gates(h).chunk(3, 1)
        return _state(o, i.sigmoid() * u.tanh() + kept)


TREE_LSTMS: dict[str, type[TreeLSTM]] = {"treelstm": BinaryTreeLSTM, "childsum": ChildSumTreeLSTM}
"""The TreeLSTM classes, by their names in recipes."""


def add_nodes(
    f: Recorder | Unfold,
    network: type[TreeLSTM],
    left: Sequence[int],
    right: Sequence[int],
    leaf: Callable[[int], Any],
) -> list[Any]:
    """Add a TreeLSTM's calls for all nodes of a tree to a Recorder or Unfold; return the calls.

    The children of a node are at the indices `left` and `right`, both before it. Where these are
    negative, `leaf(index)` adds the call for a leaf.
    """
    states: list[Any] = []
    for place, (one, other) in enumerate(zip(left, right, strict=True)):
        if one < 0:
            states.append(leaf(place))
        else:
            states.append(f.add("node", *network.node_arguments(states[one], states[other])))
    return states


def _state(o: Tensor, c: Tensor) -> Tensor:
    return torch.cat((o.sigmoid() * c.tanh(), c), 1)
