"""The loader of trees: the calls that the network needs for those of a pass, and their labels."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from lsgd.fold import CallSchedule, Graph, Node, Recorder, Unfold, merge
from lsgd.models.treelstm import TREE_LSTMS, TreeLSTM, add_nodes
from lsgd.recipe import Recipe
from lsgd.rules.sampler import Pass
from lsgd.text import word_places
from lsgd.text.sst import INNER, TreeCorpus, TreeSet


@dataclass(frozen=True)
class SingleCalls:
    """The calls for trees one after the other, node by node; as CallSchedule makes them at once."""

    trees: list[tuple[list[int], list[int]]]
    """The places of the children of each tree's nodes."""
    words: Tensor
    """The words of all leaves, shape (leaves,)."""

    def to(self, device: torch.device) -> "SingleCalls":
        """The same with its words on a device."""
        return replace(self, words=self.words.to(device, non_blocking=True))

    def apply(self, model: nn.Module) -> list[Tensor]:
        """The states of all nodes in one tensor, shape (nodes, 2 width)."""
        assert isinstance(model, TreeLSTM)
        # All words at once: each look-up has a gradient of the size of the whole table.
        vectors = iter(model.embedding(self.words).split(1))
        unfold = Unfold(model)
        rows = [
            row
            for left, right in self.trees
            for row in add_nodes(
                unfold, type(model), left, right, lambda _: unfold.add("read", next(vectors))
            )
        ]
        return unfold.apply(model, [rows])


@dataclass(frozen=True)
class TreeBatch:
    """The trees of a pass."""

    calls: CallSchedule | SingleCalls
    """What makes the states of all nodes, tree by tree."""
    labels: Tensor
    """The label of each node, shape (nodes,)."""
    roots: Tensor
    """The places of the roots among the nodes, shape (trees,)."""

    def to(self, device: torch.device) -> "TreeBatch":
        """The same on a device."""
        labels, roots = (
            values.to(device, non_blocking=True) for values in (self.labels, self.roots)
        )
        return TreeBatch(self.calls.to(device), labels, roots)


class TreeInputs:
    """Trees that lie in memory, each recorded once as the calls of the recipe's network."""

    def __init__(self, corpus: TreeCorpus, recipe: Recipe) -> None:
        self.name = "made-up trees" if recipe.inputs.loader == "synthetic" else "in memory"
        self.corpus, self.folded = corpus, recipe.batching == "folded"
        network = TREE_LSTMS[recipe.model.name]
        self.graphs = {
            name: record(trees, network) if self.folded else []
            for name, trees in corpus.sets.items()
        }

    def train(self, passes: Iterable[Pass]) -> Iterator[TreeBatch]:
        """The trees of each pass."""
        for each in passes:
            yield self._batch(each)

    def evaluation(self, passes: Iterable[Pass]) -> Iterator[TreeBatch]:
        """The trees of each pass, made as in training."""
        return self.train(passes)

    def _batch(self, each: Pass) -> TreeBatch:
        trees = self.corpus.sets[each.split]
        lengths = trees.lengths[each.examples]
        number, place = word_places(lengths)
        nodes = trees.begins[each.examples][number] + place
        calls: CallSchedule | SingleCalls
        if self.folded:
            graphs = self.graphs[each.split]
            calls = merge([graphs[example] for example in each.examples])
        else:
            words = trees.words[nodes]
            children = [children_of(trees, example) for example in each.examples]
            calls = SingleCalls(children, torch.from_numpy(words[words != INNER]))
        labels, roots = trees.labels[nodes], np.cumsum(lengths) - 1
        return TreeBatch(calls, torch.from_numpy(labels), torch.from_numpy(roots))


def record(trees: TreeSet, network: type[TreeLSTM]) -> list[Graph]:
    """The calls of each tree that make the states of its nodes."""

    def add(recorder: Recorder, example: int) -> list[Node]:
        words = trees.words[nodes_of(trees, example)].tolist()
        left, right = children_of(trees, example)
        return add_nodes(
            recorder, network, left, right, lambda place: recorder.add("leaf", words[place])
        )

    return [Graph.of(add, example) for example in range(len(trees.lengths))]


def children_of(trees: TreeSet, example: int) -> tuple[list[int], list[int]]:
    """The places of the first and the second children of a tree's nodes."""
    nodes = nodes_of(trees, example)
    return trees.left[nodes].tolist(), trees.right[nodes].tolist()


def nodes_of(trees: TreeSet, example: int) -> slice:
    """The nodes of a tree among those of all trees."""
    begin = int(trees.begins[example])
    return slice(begin, begin + int(trees.lengths[example]))
