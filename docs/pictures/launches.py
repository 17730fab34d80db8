"""Drawing of a forest, evaluated recursively and folded: `python -m docs.pictures.launches`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from docs.pictures.svg import WIDTH, Drawing, write
from lsgd.fold import Graph, Unfold, merge

NAME = "launches"
Tree = int | tuple["Tree", "Tree"]
FOREST: tuple[Tree, ...] = ((((1, 2), 3), (4, 5)), (6, 7), ((8, 9), (10, (11, 12))))
LEAF, LEVEL, RADIUS = 36.0, 60.0, 17.0
"""The distance between leaves, the distance between levels, and the radius of a node."""
EDGE = 10


class CallNumbers(nn.Module):
    """A network whose output rows are the numbers of the calls that computed them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        """The number of rows of each call."""

    def leaf(self, word: Tensor) -> Tensor:
        """Compute leaves in one call, and return its number for each of them."""
        return self._note(len(word))

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute inner nodes in one call, and return its number for each of them."""
        return self._note(len(left))

    def _note(self, rows: int) -> Tensor:
        self.rows.append(rows)
        return torch.full((rows, 1), len(self.rows))


def encode(f: Any, tree: Tree) -> list[Any]:
    """Record the nodes of a tree in a Fold, and return them with children before parents."""
    if isinstance(tree, int):
        return [f.add("leaf", tree)]
    left, right = (encode(f, child) for child in tree)
    return [*left, *right, f.add("node", left[-1], right[-1])]


def one_by_one() -> tuple[list[int], list[int]]:
    """Return the number of the call that computes each node by recursion, and each call's rows."""
    calls = CallNumbers()
    unfold = Unfold(calls)
    (made,) = unfold.apply(calls, [[node for tree in FOREST for node in encode(unfold, tree)]])
    return made.flatten().int().tolist(), calls.rows


def folded() -> tuple[list[int], list[int]]:
    """Return the number of the launch that computes each folded node, and each launch's rows."""
    calls = CallNumbers()
    schedule = merge([Graph.record(encode, tree) for tree in FOREST])
    (made,) = schedule.apply(calls)
    assert schedule.launches == len(calls.rows)
    return made.flatten().int().tolist(), calls.rows


@dataclass(frozen=True)
class NodePosition:
    """The position of a node in the drawing, and those of its children.

    The column counts leaves from the left, and the height levels above the leaves.
    """

    column: float
    height: int
    children: tuple["NodePosition", ...] = ()


def node_positions() -> list[NodePosition]:
    """Return the position of every node, in the order of `encode`."""
    columns = count(0.0)
    found = []
    for tree in FOREST:
        found += _places(tree, columns)
        columns = count(next(columns) + 0.5)  # a gap between trees
    return found


def _places(tree: Tree, columns: Iterator[float]) -> list[NodePosition]:
    if isinstance(tree, int):
        return [NodePosition(next(columns), 0)]
    left, right = (_places(child, columns) for child in tree)
    children = left[-1], right[-1]
    column = sum(child.column for child in children) / 2
    height = 1 + max(child.height for child in children)
    return [*left, *right, NodePosition(column, height, children)]


def draw() -> str:
    """Return the drawing as SVG, the recursive calls above the folded ones.

    Each node shows the number of the call that computes it.
    """
    single, single_rows = one_by_one()
    number, rows = folded()
    shared = [_told(launch, calls) for launch, calls in enumerate(rows, start=1)]
    drawing = Drawing(
        NAME,
        "Recursion and folded launches",
        f"{len(FOREST)} trees of {len(single)} nodes. By recursion each node is one call, "
        f"{len(single_rows)} in all. Folded, calls of one method that do not need each other are "
        f"one launch: {'; '.join(shared)}.",
    )
    height = LEVEL * max(place.height for place in node_positions())
    bottom = 60 + height + RADIUS
    drawing.text(EDGE, 24, f"by recursion: {len(single_rows)} calls", "head", "start")
    _draw_forest(drawing, single, bottom)
    drawing.text(EDGE, bottom + 70, f"folded: {len(rows)} launches", "head", "start")
    bottom += 106 + height + RADIUS
    for level, words in enumerate(shared):
        middle = bottom - LEVEL * level
        drawing.box(EDGE, middle - 24, WIDTH - 2 * EDGE, 48, "amber")
        drawing.text(WIDTH - EDGE - 8, middle, words, "small", "end")
    _draw_forest(drawing, number, bottom)
    return drawing.svg(bottom + 34)


def _told(launch: int, calls: int) -> str:
    return f"launch {launch}: {calls} {'leaves' if launch == 1 else 'nodes'}"


def _draw_forest(drawing: Drawing, numbers: Sequence[int], bottom: float) -> None:
    def at(place: NodePosition) -> tuple[float, float]:
        return 35 + LEAF * place.column, bottom - LEVEL * place.height

    drawn = node_positions()
    for place in drawn:
        for child in place.children:
            drawing.line(at(place), at(child))
    for place, number in zip(drawn, numbers, strict=True):
        drawing.disc(*at(place), RADIUS)
        drawing.text(*at(place), f"{number}", "small")


if __name__ == "__main__":
    write(NAME, draw())
