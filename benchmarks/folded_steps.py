"""Batching methods for trees in torch, which `python -m benchmarks.fold` measures.

`python -m benchmarks.folded_steps` is a measured process on one thread, run by the benchmark's
job. A batching method takes a network and a batch, and returns values whose sum is the loss.
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.torchfold import load_module
from lsgd.bench.job_process import main
from lsgd.comm import Comm
from lsgd.errors import UsageError
from lsgd.fold import Graph, merge
from lsgd.models.treelstm import BinaryTreeLSTM, TreeLSTM, add_nodes
from lsgd.recipe import Recipe
from lsgd.rules.sampler import MicroBatch
from lsgd.workloads.tree_inputs import TreeBatch, children_of, record_trees
from lsgd.workloads.trees import TreeClassification

ONE_BY_ONE, SAME_SHAPE, TORCHFOLD = "one at a time", "one shape by hand", "TorchFold"
FOLD_RECORDING, FOLD, LOWER_BOUND = "fold, recorded anew", "fold", "products alone"
RECORD, MERGE, TORCHFOLD_RECORD = "record", "merge", "record in TorchFold"
MOST_ALONE = 4
"""The trees of a batch that are computed one at a time; each tree takes the same time."""
TOLERANCE = 1e-4
"""The largest allowed difference of float32 results, as a share of the largest value."""

NestedTree: TypeAlias = "int | tuple[NestedTree, NestedTree]"
BatchingMethod = Callable[[Any, Any], Tensor]


class PublishedCell(nn.Module):
    """The cell of TensorFlow Fold's benchmark: a hidden layer, and four gates on it.

    From Looks et al. 2017, "Deep Learning with Dynamic Computation Graphs", iclr_2017_benchmark.py.
    It is a TreeLSTM cell whose state is its output.
    """

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, size)
        self.hidden = nn.Linear(2 * size, size)
        self.gates = nn.Linear(size, 4 * size)

    def leaf(self, row: Tensor) -> Tensor:
        """Return the states of leaves, shape (calls, size), from their rows of the embedding."""
        states: Tensor = self.embedding(row)
        return states

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the states of nodes from those of their children, all of shape (calls, size)."""
        hidden = self.hidden(torch.cat((left, right), 1)).relu()
        keep_left, keep_right, enter, new = self.gates(hidden).chunk(4, 1)
        kept: Tensor = keep_left.sigmoid() * left + keep_right.sigmoid() * right
        state: Tensor = kept + enter.sigmoid() * new.tanh()
        return state


@dataclass(frozen=True)
class Forest:
    """A batch of binary trees with the same number of leaves."""

    trees: Sequence[NestedTree]
    rows: Tensor
    """The row of the embedding of each leaf, shape (trees, leaves), from left to right."""
    graphs: Sequence[Graph]
    """The recorded calls of each tree."""


def random_tree(rows: Sequence[int], rng: random.Random) -> NestedTree:
    """Return a random binary tree with these leaves, split at uniformly drawn positions.

    >>> random_tree([0, 1, 2, 3], random.Random(1))
    (0, (1, (2, 3)))
    """
    if len(rows) == 1:
        return rows[0]
    cut = rng.randrange(1, len(rows))
    return random_tree(rows[:cut], rng), random_tree(rows[cut:], rng)


def make_forest(rng: random.Random, trees: int, leaves: int, *, same_shape: bool = False) -> Forest:
    """Return a batch of random trees; `same_shape` gives all trees one shape.

    No two leaves have the same row, since TorchFold merges equal calls.
    """
    rows = torch.tensor(rng.sample(range(trees * leaves), trees * leaves)).view(trees, leaves)
    seeds = [rng.random() for _ in range(trees)]
    drawn = [
        random_tree(own, random.Random(seeds[0] if same_shape else seed))
        for own, seed in zip(rows.tolist(), seeds, strict=True)
    ]
    return Forest(drawn, rows, [Graph.record(encode, tree) for tree in drawn])


def encode(fold: Any, tree: NestedTree) -> Any:
    """Record a tree's calls in a Fold of lsgd.fold or of TorchFold, and return the root's node."""
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    left, right = tree
    return fold.add("node", encode(fold, left), encode(fold, right))


def one_at_a_time(cell: PublishedCell, forest: Forest) -> Tensor:
    """Return the states of the roots with a call for each node and one look-up of all leaves.

    A look-up has a gradient of the size of the whole table, so a look-up for each leaf would be
    slow for a reason that has nothing to do with batching.
    """
    leaves = iter(cell.leaf(forest.rows.flatten()).split(1))
    return torch.cat([_walk(cell, tree, leaves) for tree in forest.trees])


def same_shape(cell: PublishedCell, forest: Forest) -> Tensor:
    """Return the states of the roots as if every tree had the shape of the first.

    Each node of that shape is one call for all trees.
    """
    leaves = iter(cell.leaf(forest.rows.T.flatten()).split(len(forest.trees)))
    return _walk(cell, forest.trees[0], leaves)


def fold_recorded(cell: PublishedCell, forest: Forest) -> Tensor:
    """Return the states of the roots by lsgd.fold, from graphs that are already recorded."""
    return merge(forest.graphs).apply(cell)[0]


def fold_recording(cell: PublishedCell, forest: Forest) -> Tensor:
    """Return the states of the roots by lsgd.fold, recording the trees first."""
    return merge([Graph.record(encode, tree) for tree in forest.trees]).apply(cell)[0]


def lower_bound(cell: PublishedCell, forest: Forest) -> Tensor:
    """Compute as many leaves and nodes as the trees have, in one call each, as a lower bound.

    The result is no network output. It is the cost that no batching avoids: the matrix products and
    the rest of the cell. Calls of this size do not fit into the caches of a CPU, so smaller ones
    are sometimes faster.
    """
    states = cell.leaf(forest.rows.flatten())
    inner = states[len(forest.trees) :]
    return cell.node(inner, inner)


def torchfold_method(torchfold: ModuleType) -> BatchingMethod:
    """Return the batching method that records and runs the trees with TorchFold in every step."""

    def way(cell: PublishedCell, forest: Forest) -> Tensor:
        fold = torchfold.Fold()
        roots = [encode(fold, tree) for tree in forest.trees]
        states: Tensor = fold.apply(cell, [roots])[0]
        return states

    return way


@dataclass(frozen=True)
class TimedMethod:
    """A batching method with the batches that it is timed on."""

    method: BatchingMethod
    module: nn.Module | None
    batches: Sequence[Any]
    training: bool = False
    share: float = 1.0
    """The share of a full batch that each of `batches` has."""

    def __call__(self, times: int) -> float:
        """Return the mean CPU seconds per full batch over `times` steps, after a warm-up step.

        The warm-up removes the effect of the methods that ran before on caches and memory.
        """
        self.step(self.batches[0])
        spent = 0.0
        for number in range(times):
            begin = time.process_time()
            self.step(self.batches[number % len(self.batches)])
            spent += time.process_time() - begin
        return spent / times / self.share

    def step(self, batch: Any) -> Tensor:
        """Return the values of a batch; in training, also compute fresh gradients of their sum."""
        if self.module is not None:
            self.module.zero_grad()
        with torch.set_grad_enabled(self.training):
            values = self.method(self.module, batch)
            if self.training:
                values.sum().backward()
        return values


def difference(module: nn.Module, ways: Mapping[str, BatchingMethod], batch: Any) -> float:
    """Return the largest relative difference of values and gradients to the first method's.

    Raises UsageError beyond TOLERANCE.
    """
    results = {}
    for name, way in ways.items():
        values = TimedMethod(way, module, [batch], training=True).step(batch).detach()
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        results[name] = [values, *(each.to_dense() for each in gradients)]
    first, *others = results
    largest = 0.0
    for name in others:
        for ours, theirs in zip(results[name], results[first], strict=True):
            apart = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            if not apart <= TOLERANCE:
                raise UsageError(
                    f"{name} differs from {first} by {apart:.1g} of the largest; "
                    "nothing is measured"
                )
            largest = max(largest, apart)
    return largest


class FoldedSteps:
    """An Assignment whose candidates are the batching methods of the current setting.

    A candidate takes a number of batches and returns the CPU seconds of one. A setting has `what`,
    `torchfold` (the file of its wheel, or None) and the arguments of the function that `prepare`
    selects by `what`.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe = recipe
        self.candidates: Mapping[str, Callable[[int], Any]] = {}
        self.real: RecipeTrees | None = None
        torch.set_num_threads(1)

    def prepare(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Build the candidates of a setting, and return their names in `ways` with other facts."""
        what, wheel = setting.pop("what"), setting.pop("torchfold")
        torchfold = None if wheel is None else load_module(Path(wheel))
        gc.unfreeze()
        match what:
            case "random":
                ways, facts = random_methods(torchfold, **setting)
            case "scheduling":
                ways, facts = scheduling(torchfold, **setting)
            case "recipe":
                self.real = self.real or RecipeTrees(self.recipe)
                ways, facts = self.real.methods(torchfold, **setting)
        self.candidates = ways
        # Otherwise the collector would scan these long-lived objects during the steps.
        gc.collect()
        gc.freeze()
        return facts | {"ways": [*ways]}


def random_methods(
    torchfold: ModuleType | None, *, size: int, leaves: int, batch: int, count: int, training: bool
) -> tuple[dict[str, TimedMethod], dict[str, Any]]:
    """Return checked batching methods on `count` batches of random trees, with facts about them."""
    torch.manual_seed(0)
    cell = PublishedCell(batch * leaves, size)
    ways: dict[str, BatchingMethod] = {
        ONE_BY_ONE: one_at_a_time,
        FOLD: fold_recorded,
        FOLD_RECORDING: fold_recording,
    }
    if torchfold is not None:
        ways[TORCHFOLD] = torchfold_method(torchfold)
    few = min(batch, MOST_ALONE)
    same = ways | {SAME_SHAPE: same_shape}
    apart = max(
        difference(cell, ways, make_forest(random.Random(0), few, leaves)),
        difference(cell, same, make_forest(random.Random(0), few, leaves, same_shape=True)),
    )
    forests = list(_forests(batch, leaves, count))
    works = {
        name: TimedMethod(way, cell, forests, training)
        for name, way in (same | {LOWER_BOUND: lower_bound}).items()
    }
    some = [Forest(each.trees[:few], each.rows[:few], each.graphs[:few]) for each in forests]
    works[ONE_BY_ONE] = TimedMethod(one_at_a_time, cell, some, training, few / batch)
    return works, {"difference": apart, "launches": merge(forests[0].graphs).launches}


def scheduling(
    torchfold: ModuleType | None, *, leaves: int, batch: int, count: int
) -> tuple[dict[str, TimedMethod], dict[str, Any]]:
    """Return the parts of a step that only schedule calls, on `count` batches of random trees."""

    def record(_: None, forest: Forest) -> Any:
        return [Graph.record(encode, tree) for tree in forest.trees]

    def record_in_torchfold(_: None, forest: Forest) -> Any:
        assert torchfold is not None
        fold = torchfold.Fold()
        return [encode(fold, tree) for tree in forest.trees]

    forests = list(_forests(batch, leaves, count))
    ways: dict[str, BatchingMethod] = {
        RECORD: record,
        MERGE: lambda _, forest: merge(forest.graphs),  # type: ignore
    }
    if torchfold is not None:
        ways[TORCHFOLD_RECORD] = record_in_torchfold
    return {name: TimedMethod(way, None, forests) for name, way in ways.items()}, {}


@dataclass(frozen=True)
class TorchFoldCalls:
    """TorchFold's calls for some trees of a recipe, recorded anew at each `apply`."""

    torchfold: ModuleType
    trees: Sequence[tuple[list[int], list[int]]]
    """The indices of the children of each tree's nodes."""
    tokens: Sequence[list[int]]
    """The token of each leaf by tree, at the index of the leaf."""
    index: Tensor
    """The tokens of all leaves as a tensor, part of every batch; TorchFold takes plain numbers."""

    def apply(self, model: TreeLSTM) -> list[Tensor]:
        """Return the states of all nodes in one tensor, shape (nodes, 2 width)."""
        fold = self.torchfold.Fold()
        nodes = [
            node
            for (left, right), words in zip(self.trees, self.tokens, strict=True)
            for node in add_nodes(
                fold,
                type(model),
                left,
                right,
                lambda place, words=words: fold.add("leaf", words[place]),  # type: ignore[misc]
            )
        ]
        states: list[Tensor] = fold.apply(model, [nodes])
        return states


@dataclass(frozen=True)
class LowerBoundCalls:
    """The calls of a batch of trees, run at once without their dependencies."""

    trees: int
    index: Tensor
    """The tokens of all leaves, shape (leaves,)."""

    def apply(self, model: BinaryTreeLSTM) -> list[Tensor]:
        """Return as many states as the trees have nodes, shape (nodes, 2 width)."""
        leaves = model.leaf(self.index)
        inner = leaves[self.trees :]
        return [torch.cat((leaves, model.node(inner, inner)))]


class RecipeTrees:
    """The training trees of a recipe, read and recorded in this process."""

    def __init__(self, recipe: Recipe) -> None:
        recipe = replace(recipe, precision="float32")
        folded, alone = (
            TreeClassification(replace(recipe, batching=batching), torch.device("cpu"))
            for batching in ("folded", "recursive")
        )
        network = folded.network()
        assert isinstance(network, TreeLSTM)
        # With sparse gradients an update changes only the rows of its batch, as with the other
        # methods.
        network.embedding.sparse = True
        self.workload, self.network = folded, network
        begin = time.process_time()
        self.trees = folded.corpus.sets["train"]
        read = time.process_time()
        examples = len(record_trees(self.trees, type(network)))
        self.facts = {
            "examples": examples,
            "nodes": int(self.trees.lengths.sum()),
            "reading_seconds": read - begin,
            "recording_seconds": time.process_time() - read,
        }
        # This records the training trees again, and the other sets, as a run does at its start.
        self.inputs, self.inputs_alone = folded.inputs(), alone.inputs()
        self.graphs = self.inputs.graphs["train"]

    def methods(
        self, torchfold: ModuleType | None, *, batch: int, count: int, training: bool
    ) -> tuple[dict[str, TimedMethod], dict[str, Any]]:
        """Return checked batching methods on `count` batches of the recipe, and merging alone."""
        order = self.workload.example_order(0)
        passes = [
            MicroBatch(None, examples, range(1), step)
            for step, examples in enumerate(np.split(order, range(batch, len(order), batch)))
        ]
        chosen = passes[:count]

        def merged(_: None, each: MicroBatch) -> Any:
            return merge([self.graphs[example] for example in each.examples])

        batches: dict[str, Callable[[MicroBatch], TreeBatch]] = {
            ONE_BY_ONE: lambda each: next(iter(self.inputs_alone.train([each]))),
            FOLD: lambda each: next(iter(self.inputs.train([each]))),
        }
        if torchfold is not None:
            recorded = [self._torchfold_batch(torchfold, each) for each in chosen]
            batches[TORCHFOLD] = lambda each: recorded[each.step]
        ways = {name: self._way(make) for name, make in batches.items()}
        apart = difference(self.network, ways, chosen[0])
        bounds = [self._bound_batch(each) for each in chosen]
        ways[LOWER_BOUND] = self._way(lambda each: bounds[each.step])
        works = {
            name: TimedMethod(way, self.network, chosen, training) for name, way in ways.items()
        }
        works[MERGE] = TimedMethod(merged, None, chosen)
        launches = float(np.mean([merged(None, each).launches for each in passes]))
        return works, self.facts | {"difference": apart, "launches": launches}

    def _way(self, make: Callable[[MicroBatch], TreeBatch]) -> BatchingMethod:
        return lambda network, each: self.workload.loss(network, make(each), each)[0]

    def _torchfold_batch(self, torchfold: ModuleType, each: MicroBatch) -> TreeBatch:
        begins, lengths = self.trees.begins[each.examples], self.trees.lengths[each.examples]
        words = [
            self.trees.words[begin : begin + length].tolist()
            for begin, length in zip(begins, lengths, strict=True)
        ]
        children = [children_of(self.trees, example) for example in each.examples]
        batch = next(iter(self.inputs.train([each])))
        calls = TorchFoldCalls(torchfold, children, words, batch.calls.index)
        return replace(batch, calls=calls)  # type: ignore

    def _bound_batch(self, each: MicroBatch) -> TreeBatch:
        batch = next(iter(self.inputs_alone.train([each])))
        return replace(batch, calls=LowerBoundCalls(len(each.examples), batch.calls.index))  # type: ignore


def _forests(batch: int, leaves: int, count: int) -> Iterator[Forest]:
    rng = random.Random(batch)
    return (make_forest(rng, batch, leaves) for _ in range(count))


def _walk(cell: PublishedCell, tree: NestedTree, leaves: Iterator[Tensor]) -> Tensor:
    """Return the state of a tree's root from the states of its leaves, taken from left to right."""
    if isinstance(tree, int):
        return next(leaves)
    left, right = tree
    return cell.node(_walk(cell, left, leaves), _walk(cell, right, leaves))


if __name__ == "__main__":
    raise SystemExit(main(FoldedSteps, sys.argv[1:]))
