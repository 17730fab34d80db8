"""The launches that a batch needs."""

import ast
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from lsgd import fold
from lsgd.fold import Graph, merge
from lsgd.fold.stages import call_depths, call_stages
from lsgd.text.sst import Tree, read_trees

Calls = list[tuple[str, tuple[int, ...]]]
"""The name of each call, and the calls that it takes something of."""


class Listed:
    """The calls of a batch one behind the other, recorded with none of the library's code."""

    def __init__(self) -> None:
        self.calls: Calls = []

    def add(self, op: str, *args: Any) -> Any:
        self.calls.append((op, tuple(arg.call for arg in args if isinstance(arg, Called))))
        return Called(len(self.calls) - 1)


class Called:
    def __init__(self, call: int) -> None:
        self.call = call


def by_stages(calls: Calls) -> int:
    """The formula: depth counts only among calls whose kinds need each other in turn."""
    needs: dict[str, set[str]] = {op: set() for op, _ in calls}
    for op, givers in calls:
        needs[op] |= {calls[giver][0] for giver in givers}
    for _ in needs:
        for mine in needs.values():
            mine |= {further for need in mine for further in needs[need]}
    levels: list[int] = []
    for op, givers in calls:
        inside = (levels[giver] for giver in givers if op in needs[calls[giver][0]])
        levels.append(1 + max(inside, default=-1))
    return len({(op, level) for (op, _), level in zip(calls, levels, strict=True)})


def encode(f: Any, tree: Tree, letters: bool, logits: bool) -> list[Any]:
    """All nodes of a tree: of words or of their letters, with the logits of each or without."""
    nodes: list[Any] = []
    for word, left, right in zip(tree.words, tree.left, tree.right, strict=True):
        if not word:
            nodes.append(f.add("node", nodes[left], nodes[right]))
        elif letters:
            node = f.add("start")
            for letter in word:
                node = f.add("letter", node, ord(letter))
            nodes.append(f.add("word", node))
        else:
            nodes.append(f.add("leaf", len(word)))
    return [f.add("logits", node) for node in nodes] if logits else nodes


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(("letters", "logits"), [(False, True), (True, True)])
def test_launches_on_trees_of_sentences(test_data: Path, letters: bool, logits: bool) -> None:
    trees = [*read_trees(test_data / "sst" / "train.txt")]
    draw = random.Random(0)
    for _ in range(3):
        batch = draw.sample(trees, 25)
        listed = Listed()
        for tree in batch:
            encode(listed, tree, letters, logits)
        launches = merge([Graph.record(encode, tree, letters, logits) for tree in batch]).launches
        assert launches == by_stages(listed.calls)


def test_stages_are_in_order_whatever_the_edges() -> None:
    draw = random.Random(0)
    for _ in range(200):
        kinds = draw.randrange(1, 9)
        edges = frozenset(
            (draw.randrange(kinds), draw.randrange(kinds)) for _ in range(draw.randrange(12))
        )
        stage = call_stages(kinds, edges)
        reach = {kind: {kind} for kind in range(kinds)}
        for _ in range(kinds):
            for giver, taker in edges:
                reach[giver] |= reach[taker]
        for giver, taker in edges:
            back = giver in reach[taker]
            assert stage[giver] == stage[taker] if back else stage[giver] < stage[taker]


def test_depth_counts_inside_a_stage_only() -> None:
    kinds, counts = [0, 1, 0, 1, 2, 2], [0, 1, 1, 1, 1, 2]
    givers = [0, 1, 2, 3, 4, 0]
    assert call_depths(kinds, counts, givers, [2, 2, 3]) == [0, 1, 2, 3, 0, 1]
    assert call_depths(kinds, counts, givers, [1, 2, 3]) == [0, 0, 0, 0, 0, 1]


def test_the_library_needs_torch_and_numpy_alone() -> None:
    folder = Path(fold.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            match node:
                case ast.Import():
                    names = [name.name for name in node.names]
                case ast.ImportFrom(level=0, module=str(module)):
                    names = [module]
            roots = {name.partition(".")[0] for name in names}
            assert roots <= {"torch", "numpy", *sys.stdlib_module_names}, file.name
