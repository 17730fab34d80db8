"""TreeLSTMs (Tai et al. 2015): the class of each node of a tree, from the words below it.

The methods `leaf` and `node` of a network are the calls of which lsgd.fold makes a tree. They give
states, which have h and c side by side, shape (2 width,); `scores` reads any number of states.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lsgd.fold import Ragged, Recorder, Unfold


class TreeLSTM(nn.Module, ABC):
    """What both kinds have in common: leaves, each a cell of its word alone, and scores."""

    def __init__(self, words: int, classes: int, *, embedding: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding)
        self.input = nn.Linear(embedding, 3 * width)
        self.inner(width)
        self.fc = nn.Linear(width, classes)

    @abstractmethod
    def inner(self, width: int) -> None:
        """Make the layers of a node above others."""

    @staticmethod
    @abstractmethod
    def arguments(left: Any, right: Any) -> tuple[Any, ...]:
        """Two children as the arguments of `node`."""

    def leaf(self, word: Tensor) -> Tensor:
        """The states of leaves with these words, shape (leaves, 2 width)."""
        return self.read(self.embedding(word))

    def read(self, vector: Tensor) -> Tensor:
        """The same of words that have been looked up, (leaves, embedding)."""
        i, o, u = self.input(vector).chunk(3, 1)
        return _state(o, i.sigmoid() * u.tanh())

    def scores(self, state: Tensor) -> Tensor:
        """The logits of the classes of nodes, shape (nodes, classes)."""
        h, _ = state.chunk(2, 1)
        scores: Tensor = self.fc(h)
        return scores


class BinaryTreeLSTM(TreeLSTM):
    """The N-ary TreeLSTM of two children (equations 9 to 14 with N = 2), words at leaves only.

    Each child has weights of its own; a leaf and a node above others, and the two forget gates, do
    not share their biases, as in the authors' code.
    """

    def inner(self, width: int) -> None:
        """One product for all gates of a node: of both children to input, output, update, and to
        the forget gate of either child."""
        self.gates = nn.Linear(2 * width, 5 * width)

    @staticmethod
    def arguments(left: Any, right: Any) -> tuple[Any, ...]:
        """An argument for each."""
        return left, right

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        """The states of nodes above these states, each (nodes, 2 width)."""
        (h_left, c_left), (h_right, c_right) = left.chunk(2, 1), right.chunk(2, 1)
        i, o, u, f_left, f_right = self.gates(torch.cat((h_left, h_right), 1)).chunk(5, 1)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * c_left + f_right.sigmoid() * c_right
        return _state(o, c)


class ChildSumTreeLSTM(TreeLSTM):
    """The child-sum TreeLSTM (equations 2 to 8) with words at leaves only.

    All children have the same weights, so that their order says nothing and their number may be any
    one. A leaf and a node above others do not share their biases.
    """

    def inner(self, width: int) -> None:
        """One product of the sum of all h, and one for the forget gate of each child."""
        self.gates = nn.Linear(width, 3 * width)
        self.forget = nn.Linear(width, width)

    @staticmethod
    def arguments(left: Any, right: Any) -> tuple[Any, ...]:
        """One list of both."""
        return ((left, right),)

    def node(self, children: Ragged) -> Tensor:
        """The states of nodes above any number of children each, shape (nodes, 2 width)."""
        h, c = children.rows.chunk(2, 1)
        kept = self.forget(h).sigmoid() * c
        h, kept = children.sum(torch.cat((h, kept), 1)).chunk(2, 1)
        i, o, u = self.gates(h).chunk(3, 1)
        return _state(o, i.sigmoid() * u.tanh() + kept)


TREE_LSTMS: dict[str, type[TreeLSTM]] = {"treelstm": BinaryTreeLSTM, "childsum": ChildSumTreeLSTM}
"""The networks by the names of lsgd.recipe."""


def add_nodes(
    f: Recorder | Unfold,
    network: type[TreeLSTM],
    left: Sequence[int],
    right: Sequence[int],
    leaf: Callable[[int], Any],
) -> list[Any]:
    """The calls that make the states of all nodes of a tree, added to a Recorder or Unfold.

    A node has its children at the places `left` and `right`, both before it; where these are
    negative, `leaf(place)` adds the call of a leaf.
    """
    states: list[Any] = []
    for place, (one, other) in enumerate(zip(left, right, strict=True)):
        if one < 0:
            states.append(leaf(place))
        else:
            states.append(f.add("node", *network.arguments(states[one], states[other])))
    return states


def _state(o: Tensor, c: Tensor) -> Tensor:
    return torch.cat((o.sigmoid() * c.tanh(), c), 1)
