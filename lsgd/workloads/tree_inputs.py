"""A loader of trees, which batches the network calls that a micro-batch of trees needs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from lsgd.fold import CallSchedule, Graph, Node, Recorder, Unfold, merge
from lsgd.inputs import ExampleColumns, Inputs
from lsgd.job.device import to_device_together
from lsgd.models.treelstm import TREE_LSTMS, TreeLSTM, add_nodes
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.text import word_places
from lsgd.text.sst import ABSENT, TreeCorpus, TreeSet


@dataclass(frozen=True)
class UnbatchedCalls:
    """The TreeLSTM calls for a micro-batch of trees, made one tree and one node at a time.

    It is the unbatched counterpart of CallSchedule.
    """

    trees: list[tuple[list[int], list[int]]]
    """The positions of the first and second children of each tree's nodes."""
    index: Tensor
    """The words of all leaves, shape (leaves,)."""

    def apply(self, model: nn.Module) -> list[Tensor]:
        """Run the TreeLSTM on all nodes, one by one; return their states, (nodes, 2 width)."""
        assert isinstance(model, TreeLSTM)
        # All words at once: each look-up has a gradient as large as the whole table.
        vectors = iter(model.embedding(self.index).split(1))
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
    """A batch of parsed sentences: the network calls for all nodes, the labels and the roots."""

    calls: CallSchedule | UnbatchedCalls
    """The network calls that compute the states of all nodes, tree by tree."""
    labels: Tensor
    """The label of each node, shape (nodes,)."""
    roots: Tensor
    """The positions of the roots among the nodes, shape (trees,)."""

    def to(self, device: torch.device) -> "TreeBatch":
        """Copy this batch of trees to a device in one transfer."""
        together = [self.calls.index, self.labels, self.roots]
        index, labels, roots = to_device_together(together, device)
        return TreeBatch(replace(self.calls, index=index), labels, roots)


class TreeInputs(Inputs):
    """The loader of parsed sentences in memory, which records each tree's network calls once."""

    def __init__(self, corpus: TreeCorpus, recipe: Recipe) -> None:
        self.name = "made-up trees" if recipe.inputs.loader == "synthetic" else "in memory"
        self.corpus, self.folded = corpus, recipe.batching == "folded"
        network = TREE_LSTMS[recipe.model.name]
        self.graphs = {
            name: record_trees(trees, network) if self.folded else []
            for name, trees in corpus.sets.items()
        }

    def columns(self) -> ExampleColumns:
        """Return the whole corpus of parsed sentences as arrays by name, for comparing copies."""
        return self.corpus.columns

    def train(self, passes: Iterable[MicroBatch]) -> Iterator[TreeBatch]:
        """Yield the batch of parsed sentences of each micro-batch."""
        return map(self._batch, passes)

    def _batch(self, each: MicroBatch) -> TreeBatch:
        trees = self.corpus.sets[each.split]
        lengths = trees.lengths[each.examples]
        number, place = word_places(lengths)
        nodes = trees.begins[each.examples][number] + place
        calls: CallSchedule | UnbatchedCalls
        if self.folded:
            graphs = self.graphs[each.split]
            calls = merge([graphs[example] for example in each.examples])
        else:
            words = trees.words[nodes]
            children = [children_of(trees, example) for example in each.examples]
            calls = UnbatchedCalls(children, torch.from_numpy(words[words != ABSENT]))
        labels, roots = trees.labels[nodes], np.cumsum(lengths) - 1
        return TreeBatch(calls, torch.from_numpy(labels), torch.from_numpy(roots))


def record_trees(trees: TreeSet, network: type[TreeLSTM]) -> list[Graph]:
    """Record for each tree, as a graph, the TreeLSTM calls that compute its nodes' states."""

    def add(recorder: Recorder, example: int) -> list[Node]:
        words = trees.words[nodes_of(trees, example)].tolist()
        left, right = children_of(trees, example)
        return add_nodes(
            recorder, network, left, right, lambda place: recorder.add("leaf", words[place])
        )

    return [Graph.record(add, example) for example in range(len(trees.lengths))]


def children_of(trees: TreeSet, example: int) -> tuple[list[int], list[int]]:
    """Return the positions, within a tree, of its nodes' first and second children."""
    nodes = nodes_of(trees, example)
    return trees.left[nodes].tolist(), trees.right[nodes].tolist()


def nodes_of(trees: TreeSet, example: int) -> slice:
    """Return the slice of one tree's nodes among the concatenated nodes of all trees."""
    begin = int(trees.begins[example])
    return slice(begin, begin + int(trees.lengths[example]))
