"""Draws a small forest, recursive and folded: `python -m docs.pictures.launches`."""

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
"""The way from a leaf to the next one, from a level to the one above, and the radius of a node."""
EDGE = 10


class Calls(nn.Module):
    """A network that gives each row the number of the call which has computed it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        """How many rows each call had."""

    def leaf(self, word: Tensor) -> Tensor:
        """A leaf, or many at once."""
        return self._note(len(word))

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        """A node above two others, or many at once."""
        return self._note(len(left))

    def _note(self, rows: int) -> Tensor:
        self.rows.append(rows)
        return torch.full((rows, 1), len(self.rows))


def encode(f: Any, tree: Tree) -> list[Any]:
    """All nodes of a tree, each behind its children."""
    if isinstance(tree, int):
        return [f.add("leaf", tree)]
    left, right = (encode(f, child) for child in tree)
    return [*left, *right, f.add("node", left[-1], right[-1])]


def one_by_one() -> tuple[list[int], list[int]]:
    """The number of the call that computes each node, by recursion, and the rows of each call."""
    calls = Calls()
    unfold = Unfold(calls)
    (made,) = unfold.apply(calls, [[node for tree in FOREST for node in encode(unfold, tree)]])
    return made.flatten().int().tolist(), calls.rows


def folded() -> tuple[list[int], list[int]]:
    """The same of the folded forest."""
    calls = Calls()
    schedule = merge([Graph.of(encode, tree) for tree in FOREST])
    (made,) = schedule.apply(calls)
    assert schedule.launches == len(calls.rows)
    return made.flatten().int().tolist(), calls.rows


@dataclass(frozen=True)
class Place:
    """Where a node is drawn: its column, its height above the leaves, and its children."""

    column: float
    height: int
    children: tuple["Place", ...] = ()


def places() -> list[Place]:
    """The place of every node, in the order of `encode`."""
    columns = count(0.0)
    found = []
    for tree in FOREST:
        found += _places(tree, columns)
        columns = count(next(columns) + 0.5)  # trees are apart
    return found


def _places(tree: Tree, columns: Iterator[float]) -> list[Place]:
    if isinstance(tree, int):
        return [Place(next(columns), 0)]
    left, right = (_places(child, columns) for child in tree)
    children = left[-1], right[-1]
    column = sum(child.column for child in children) / 2
    height = 1 + max(child.height for child in children)
    return [*left, *right, Place(column, height, children)]


def draw() -> str:
    """Both, one below the other; in each node the number of the call that computes it."""
    single, single_rows = one_by_one()
    number, rows = folded()
    shared = [_told(launch, calls) for launch, calls in enumerate(rows, start=1)]
    drawing = Drawing(
        NAME,
        "Recursion and folded launches",
        f"{len(FOREST)} trees of {len(single)} nodes. By recursion each node is a call by itself, "
        f"{len(single_rows)} in all. Folded, calls of one method that do not need each other are "
        f"one launch: {'; '.join(shared)}.",
    )
    height = LEVEL * max(place.height for place in places())
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
    def at(place: Place) -> tuple[float, float]:
        return 35 + LEAF * place.column, bottom - LEVEL * place.height

    drawn = places()
    for place in drawn:
        for child in place.children:
            drawing.line(at(place), at(child))
    for place, number in zip(drawn, numbers, strict=True):
        drawing.disc(*at(place), RADIUS)
        drawing.text(*at(place), f"{number}", "small")


if __name__ == "__main__":
    write(NAME, draw())
