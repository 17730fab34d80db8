"""Trees batched in several ways, in torch: what `lsgd bench fold` measures.

`python -m lsgd.bench.folded_steps` is a process of it, as lsgd.bench.member runs them, on one
thread. A way takes a network and a batch, and returns values whose sum is the loss.
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

from lsgd.bench.member import main
from lsgd.bench.torchfold import loaded
from lsgd.comm import Comm
from lsgd.errors import Refused
from lsgd.fold import Graph, merge
from lsgd.models.treelstm import BinaryTreeLSTM, TreeLSTM, add_nodes
from lsgd.recipe import Recipe
from lsgd.rules.sampler import Pass
from lsgd.workloads.forest import TreeBatch, children_of, record
from lsgd.workloads.trees import Trees

ALONE, ALIKE, TORCHFOLD = "one at a time", "one shape by hand", "TorchFold"
ANEW, FOLD, BOUND = "fold, recorded anew", "fold", "products alone"
RECORD, MERGE, TORCHFOLD_RECORD = "record", "merge", "record in TorchFold"
MOST_ALONE = 4
"""The trees of a batch that are gone through one at a time, where all take the same time."""
TOLERANCE = 1e-4
"""How far results in float32 may be apart, as a share of the largest."""

Nested: TypeAlias = "int | tuple[Nested, Nested]"
Way = Callable[[Any, Any], Tensor]


class PublishedCell(nn.Module):
    """The cell of TensorFlow Fold's benchmark: a hidden layer, and four gates on it.

    Of Looks et al. 2017, "Deep Learning with Dynamic Computation Graphs", whose program is
    iclr_2017_benchmark.py. It is like a TreeLSTM without a state beside its output.
    """

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, size)
        self.hidden = nn.Linear(2 * size, size)
        self.gates = nn.Linear(size, 4 * size)

    def leaf(self, row: Tensor) -> Tensor:
        """The states, shape (calls, size), of the leaves with these rows of the embedding."""
        states: Tensor = self.embedding(row)
        return states

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        """The states of nodes above nodes with these states; all have the shape (calls, size)."""
        hidden = self.hidden(torch.cat((left, right), 1)).relu()
        keep_left, keep_right, enter, new = self.gates(hidden).chunk(4, 1)
        kept: Tensor = keep_left.sigmoid() * left + keep_right.sigmoid() * right
        state: Tensor = kept + enter.sigmoid() * new.tanh()
        return state


@dataclass(frozen=True)
class Forest:
    """A batch of binary trees with the same number of leaves."""

    trees: Sequence[Nested]
    rows: Tensor
    """The row of the embedding of each leaf, shape (trees, leaves), from left to right."""
    graphs: Sequence[Graph]
    """The trees' calls, recorded once."""


def random_tree(rows: Sequence[int], rng: random.Random) -> Nested:
    """A tree with these leaves, each part of it cut in two at any place with the same probability.

    >>> random_tree([0, 1, 2, 3], random.Random(1))
    (0, (1, (2, 3)))
    """
    if len(rows) == 1:
        return rows[0]
    cut = rng.randrange(1, len(rows))
    return random_tree(rows[:cut], rng), random_tree(rows[cut:], rng)


def make_forest(rng: random.Random, trees: int, leaves: int, *, alike: bool = False) -> Forest:
    """Random trees, all of one shape if they are to be alike.

    No two leaves have the same row, since TorchFold makes calls that are the same only once.
    """
    rows = torch.tensor(rng.sample(range(trees * leaves), trees * leaves)).view(trees, leaves)
    seeds = [rng.random() for _ in range(trees)]
    drawn = [
        random_tree(own, random.Random(seeds[0] if alike else seed))
        for own, seed in zip(rows.tolist(), seeds, strict=True)
    ]
    return Forest(drawn, rows, [Graph.of(encode, tree) for tree in drawn])


def encode(fold: Any, tree: Nested) -> Any:
    """The root's node of a tree, in a Fold of lsgd.fold or of TorchFold."""
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    left, right = tree
    return fold.add("node", encode(fold, left), encode(fold, right))


def one_at_a_time(cell: PublishedCell, forest: Forest) -> Tensor:
    """The states of the roots, by a call for each node; the leaves are looked up in one.

    A look-up has a gradient of the size of the whole table, so one for each leaf would be slow for
    a reason that has nothing to do with batching.
    """
    leaves = iter(cell.leaf(forest.rows.flatten()).split(1))
    return torch.cat([_walk(cell, tree, leaves) for tree in forest.trees])


def one_shape(cell: PublishedCell, forest: Forest) -> Tensor:
    """The states of the roots if all trees had the shape of the first: a call for each of its
    nodes, for all trees at once."""
    leaves = iter(cell.leaf(forest.rows.T.flatten()).split(len(forest.trees)))
    return _walk(cell, forest.trees[0], leaves)


def folded(cell: PublishedCell, forest: Forest) -> Tensor:
    """The states of the roots by lsgd.fold, of the graphs that are recorded already."""
    return merge(forest.graphs).apply(cell)[0]


def folded_anew(cell: PublishedCell, forest: Forest) -> Tensor:
    """The states of the roots by lsgd.fold, which records the trees first."""
    return merge([Graph.of(encode, tree) for tree in forest.trees]).apply(cell)[0]


def products_alone(cell: PublishedCell, forest: Forest) -> Tensor:
    """The states of as many leaves and nodes as the trees have, in one call each.

    That is no network, but what none can do without: the products, and what the cell does beside
    them. Calls so large do not fit into the caches of a CPU, and smaller ones are sometimes faster.
    """
    states = cell.leaf(forest.rows.flatten())
    inner = states[len(forest.trees) :]
    return cell.node(inner, inner)


def by_torchfold(torchfold: ModuleType) -> Way:
    """The way of TorchFold, which records in every step."""

    def way(cell: PublishedCell, forest: Forest) -> Tensor:
        fold = torchfold.Fold()
        roots = [encode(fold, tree) for tree in forest.trees]
        states: Tensor = fold.apply(cell, [roots])[0]
        return states

    return way


@dataclass(frozen=True)
class TimedWay:
    """A way with the batches that it is measured on."""

    way: Way
    module: nn.Module | None
    batches: Sequence[Any]
    training: bool = False
    share: float = 1.0
    """The part of a batch that each of `batches` has."""

    def __call__(self, times: int) -> float:
        """The CPU seconds of a batch, on average of so many, after one that does not count.

        What caches and memory are left as by others, who have had their turn before, is no matter
        of the way.
        """
        self.step(self.batches[0])
        spent = 0.0
        for number in range(times):
            begin = time.process_time()
            self.step(self.batches[number % len(self.batches)])
            spent += time.process_time() - begin
        return spent / times / self.share

    def step(self, batch: Any) -> Tensor:
        """Values of a batch; in training also their gradients, in the place of earlier ones."""
        if self.module is not None:
            self.module.zero_grad()
        with torch.set_grad_enabled(self.training):
            values = self.way(self.module, batch)
            if self.training:
                values.sum().backward()
        return values


def difference(module: nn.Module, ways: Mapping[str, Way], batch: Any) -> float:
    """How far values and gradients of the ways are from those of the first, as a share of their
    largest; raises Refused beyond TOLERANCE."""
    results = {}
    for name, way in ways.items():
        values = TimedWay(way, module, [batch], training=True).step(batch).detach()
        gradients = [each.grad for each in module.parameters() if each.grad is not None]
        results[name] = [values, *(each.to_dense() for each in gradients)]
    first, *others = results
    largest = 0.0
    for name in others:
        for ours, theirs in zip(results[name], results[first], strict=True):
            apart = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            if not apart <= TOLERANCE:
                raise Refused(
                    f"{name} comes to other values than {first}, by {apart:.1g} of the largest; "
                    "nothing is measured"
                )
            largest = max(largest, apart)
    return largest


class FoldedSteps:
    """An Assignment whose settings each replace the candidates, which are ways by their names.

    A candidate takes a number of batches, and says the CPU seconds of one. A setting has `what`,
    `torchfold`, which is the file of its wheel or None, and the arguments of the function that
    `prepare` names.
    """

    def __init__(self, recipe: Recipe, comm: Comm, device: torch.device) -> None:
        self.recipe = recipe
        self.candidates: Mapping[str, Callable[[int], Any]] = {}
        self.real: RealTrees | None = None
        torch.set_num_threads(1)

    def prepare(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Make the candidates; says their names, in `ways`, and other facts."""
        what, wheel = setting.pop("what"), setting.pop("torchfold")
        torchfold = None if wheel is None else loaded(Path(wheel))
        gc.unfreeze()
        match what:
            case "random":
                ways, facts = random_ways(torchfold, **setting)
            case "scheduling":
                ways, facts = scheduling(torchfold, **setting)
            case "recipe":
                self.real = self.real or RealTrees(self.recipe)
                ways, facts = self.real.ways(torchfold, **setting)
        self.candidates = ways
        # Or every step would now and then look through all that stays.
        gc.collect()
        gc.freeze()
        return facts | {"ways": [*ways]}


def random_ways(
    torchfold: ModuleType | None, *, size: int, leaves: int, batch: int, count: int, training: bool
) -> tuple[dict[str, TimedWay], dict[str, Any]]:
    """The ways through `count` batches of trees with the cell of this size, all checked."""
    torch.manual_seed(0)
    cell = PublishedCell(batch * leaves, size)
    ways: dict[str, Way] = {ALONE: one_at_a_time, FOLD: folded, ANEW: folded_anew}
    if torchfold is not None:
        ways[TORCHFOLD] = by_torchfold(torchfold)
    few = min(batch, MOST_ALONE)
    same = ways | {ALIKE: one_shape}
    apart = max(
        difference(cell, ways, make_forest(random.Random(0), few, leaves)),
        difference(cell, same, make_forest(random.Random(0), few, leaves, alike=True)),
    )
    forests = list(_forests(batch, leaves, count))
    works = {
        name: TimedWay(way, cell, forests, training)
        for name, way in (same | {BOUND: products_alone}).items()
    }
    some = [Forest(each.trees[:few], each.rows[:few], each.graphs[:few]) for each in forests]
    works[ALONE] = TimedWay(one_at_a_time, cell, some, training, few / batch)
    return works, {"difference": apart, "launches": merge(forests[0].graphs).launches}


def scheduling(
    torchfold: ModuleType | None, *, leaves: int, batch: int, count: int
) -> tuple[dict[str, TimedWay], dict[str, Any]]:
    """The parts of a step that compute nothing, on `count` batches of trees."""

    def record(_: None, forest: Forest) -> Any:
        return [Graph.of(encode, tree) for tree in forest.trees]

    def record_in_torchfold(_: None, forest: Forest) -> Any:
        assert torchfold is not None
        fold = torchfold.Fold()
        return [encode(fold, tree) for tree in forest.trees]

    forests = list(_forests(batch, leaves, count))
    ways: dict[str, Way] = {RECORD: record, MERGE: lambda _, forest: merge(forest.graphs)}  # type: ignore
    if torchfold is not None:
        ways[TORCHFOLD_RECORD] = record_in_torchfold
    return {name: TimedWay(way, None, forests) for name, way in ways.items()}, {}


@dataclass(frozen=True)
class TorchFoldCalls:
    """The calls for some trees of a recipe, which TorchFold records whenever they are made."""

    torchfold: ModuleType
    trees: Sequence[tuple[list[int], list[int]]]
    """The places of the children of each tree's nodes."""
    words: Sequence[list[int]]
    """The word of each tree's leaves, at the place of the leaf."""

    def to(self, device: torch.device) -> "TorchFoldCalls":
        """The same: it is measured on the CPU alone."""
        return self

    def apply(self, model: TreeLSTM) -> list[Tensor]:
        """The states of all nodes in one tensor, shape (nodes, 2 width)."""
        fold = self.torchfold.Fold()
        nodes = [
            node
            for (left, right), words in zip(self.trees, self.words, strict=True)
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
class BoundCalls:
    """As many calls as some trees have, made at once whatever they need of each other."""

    trees: int
    words: Tensor
    """The words of all leaves, shape (leaves,)."""

    def to(self, device: torch.device) -> "BoundCalls":
        """The same: it is measured on the CPU alone."""
        return self

    def apply(self, model: BinaryTreeLSTM) -> list[Tensor]:
        """The states of as many nodes as there are, shape (nodes, 2 width)."""
        leaves = model.leaf(self.words)
        inner = leaves[self.trees :]
        return [torch.cat((leaves, model.node(inner, inner)))]


class RealTrees:
    """The training trees of a recipe, read and recorded in this process."""

    def __init__(self, recipe: Recipe) -> None:
        recipe = replace(recipe, precision="float32")
        folded, alone = (
            Trees(replace(recipe, batching=batching), torch.device("cpu"))
            for batching in ("folded", "recursive")
        )
        network = folded.network()
        assert isinstance(network, TreeLSTM)
        # An update moves the words of its batch, and not the whole table; so do these gradients.
        network.embedding.sparse = True
        self.workload, self.network = folded, network
        begin = time.process_time()
        self.trees = folded.corpus.sets["train"]
        read = time.process_time()
        examples = len(record(self.trees, type(network)))
        self.facts = {
            "examples": examples,
            "nodes": int(self.trees.lengths.sum()),
            "reading_seconds": read - begin,
            "recording_seconds": time.process_time() - read,
        }
        # Which record them again, and the other sets, as a run does before it begins.
        self.inputs, self.inputs_alone = folded.inputs(), alone.inputs()
        self.graphs = self.inputs.graphs["train"]

    def ways(
        self, torchfold: ModuleType | None, *, batch: int, count: int, training: bool
    ) -> tuple[dict[str, TimedWay], dict[str, Any]]:
        """The ways through `count` batches, all checked, and the merging alone."""
        order = self.workload.order(0)
        passes = [
            Pass(None, examples, range(1), step)
            for step, examples in enumerate(np.split(order, range(batch, len(order), batch)))
        ]
        chosen = passes[:count]

        def merged(_: None, each: Pass) -> Any:
            return merge([self.graphs[example] for example in each.examples])

        batches: dict[str, Callable[[Pass], TreeBatch]] = {
            ALONE: lambda each: next(iter(self.inputs_alone.train([each]))),
            FOLD: lambda each: next(iter(self.inputs.train([each]))),
        }
        if torchfold is not None:
            recorded = [self._torchfold_batch(torchfold, each) for each in chosen]
            batches[TORCHFOLD] = lambda each: recorded[each.step]
        ways = {name: self._way(make) for name, make in batches.items()}
        apart = difference(self.network, ways, chosen[0])
        bounds = [self._bound_batch(each) for each in chosen]
        ways[BOUND] = self._way(lambda each: bounds[each.step])
        works = {name: TimedWay(way, self.network, chosen, training) for name, way in ways.items()}
        works[MERGE] = TimedWay(merged, None, chosen)
        launches = float(np.mean([merged(None, each).launches for each in passes]))
        return works, self.facts | {"difference": apart, "launches": launches}

    def _way(self, make: Callable[[Pass], TreeBatch]) -> Way:
        return lambda network, each: self.workload.loss(network, make(each), each)[0]

    def _torchfold_batch(self, torchfold: ModuleType, each: Pass) -> TreeBatch:
        begins, lengths = self.trees.begins[each.examples], self.trees.lengths[each.examples]
        words = [
            self.trees.words[begin : begin + length].tolist()
            for begin, length in zip(begins, lengths, strict=True)
        ]
        children = [children_of(self.trees, example) for example in each.examples]
        batch = next(iter(self.inputs.train([each])))
        return replace(batch, calls=TorchFoldCalls(torchfold, children, words))  # type: ignore

    def _bound_batch(self, each: Pass) -> TreeBatch:
        batch = next(iter(self.inputs_alone.train([each])))
        return replace(batch, calls=BoundCalls(len(each.examples), batch.calls.words))  # type: ignore


def _forests(batch: int, leaves: int, count: int) -> Iterator[Forest]:
    rng = random.Random(batch)
    return (make_forest(rng, batch, leaves) for _ in range(count))


def _walk(cell: PublishedCell, tree: Nested, leaves: Iterator[Tensor]) -> Tensor:
    """The state of a tree's root, whose leaves have these states, from left to right."""
    if isinstance(tree, int):
        return next(leaves)
    left, right = tree
    return cell.node(_walk(cell, left, leaves), _walk(cell, right, leaves))


if __name__ == "__main__":
    raise SystemExit(main(FoldedSteps, sys.argv[1:]))
