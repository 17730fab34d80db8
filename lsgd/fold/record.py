"""Records the calls of one example, without making them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .stages import depths, stages

INT, NODE, LIST, NONE, LONE = "int", "node", "list", "none", "lone"
"""The kinds of arguments: a number; what a call gives; a list of these; an empty list; and what a
call gives, as the same for all calls that take it. Two more kinds have words of their own: (TENSOR,
shape, dtype), and (WHOLE, signature, part), which is like LONE of a call that is made once."""
TENSOR, WHOLE = "tensor", "whole"

PART_BITS = 8
MOST_PARTS = 2**PART_BITS - 1
CALL_BITS = 2 * PART_BITS


class Signature(NamedTuple):
    """What calls have in common that may be made as one."""

    op: str | int
    """The method of the module; of an output of the graph its number."""
    kinds: tuple[Any, ...]
    """The kind of each argument."""

    @property
    def once(self) -> bool:
        """Whether all such calls are one: they have no argument that is a call's own."""
        return all(
            kind == NONE or (type(kind) is tuple and kind[0] == WHOLE) for kind in self.kinds
        )

    @property
    def reads(self) -> int:
        """The arguments that are nodes, without those that are lists."""
        return len(self.kinds) - self.words - self.kinds.count(NONE)

    @property
    def words(self) -> int:
        """The arguments that are kept as one number: ints, tensors, and the lengths of lists."""
        return sum(map(_is_word, self.kinds))

    @property
    def lists(self) -> list[int]:
        """Which of these numbers are the lengths of lists."""
        return [number for number, kind in enumerate(filter(_is_word, self.kinds)) if kind == LIST]


def _is_word(kind: Any) -> bool:
    return kind in (INT, LIST) or (type(kind) is tuple and kind[0] == TENSOR)


class SignatureTable(NamedTuple):
    """The signatures of the calls of a graph."""

    signatures: tuple[Signature, ...]
    edges: frozenset[tuple[int, int]]
    """The numbers of two signatures of which a call of the second takes what one of the first
    gives."""

    def stages(self) -> tuple[int, ...]:
        """The stage of each signature."""
        return stages(len(self.signatures), self.edges)


@dataclass(frozen=True, eq=False)
class Graph:
    """The recorded calls of an example: small, and free to go from process to process.

    Calls stand behind those of which they take something; the last ones are the outputs.
    """

    table: SignatureTable
    signatures: NDArray[np.int32]
    """The number of each call's signature in the table, shape (calls,)."""
    depths: NDArray[np.int32]
    """The depth of each call in its stage, shape (calls,)."""
    reads: NDArray[np.int64]
    """What the calls take of others, call by call, by the numbers that `packed` makes."""
    words: NDArray[np.int64]
    """The other arguments, call by call: ints, numbers of tensors, and lengths of lists."""
    tensors: tuple[Tensor, ...]
    """The arguments that are tensors, each of one row."""

    @staticmethod
    def of(encode: Callable[..., Any], *example: Any) -> "Graph":
        """The calls that `encode(f, *example)` makes on f, which is a Recorder, with the nodes that
        it returns as outputs.

        It may return a node, or a list of them, whose rows make one output; or a tuple of those,
        which are several outputs.
        """
        recorder = Recorder()
        made = encode(recorder, *example)
        outputs = made if isinstance(made, tuple) else (made,)
        for output in outputs:
            if not isinstance(output, Node | list | tuple):
                raise TypeError(
                    f"{encode!r} returned {output!r}; let it return a node, a list of nodes, or a "
                    "tuple of these"
                )
        return recorder.graph(
            [[output] if isinstance(output, Node) else output for output in outputs]
        )


def packed(call: int, part: int = 0, parts: int = 0) -> int:
    """One number for a part of what a call gives, or with parts=0 for the whole of it.

    >>> [number >> CALL_BITS for number in (packed(3), packed(3, 1, 2))]
    [3, 3]
    """
    return call << CALL_BITS | parts << PART_BITS | part


class Node:
    """What a recorded call will give: a tensor with a row for the call, or a tuple of such."""

    __slots__ = ("alone", "graph", "members", "shared", "source")

    def __init__(self, graph: object, source: int, alone: bool) -> None:
        self.graph, self.source, self.alone = graph, source, alone

    def split(self, count: int) -> "tuple[Node, ...]":
        """The members of the tuple of `count` tensors that the call gives."""
        if not 0 < count <= MOST_PARTS:
            raise ValueError(f"split({count}) is not possible; write 1 to {MOST_PARTS}")
        if self.source & (1 << CALL_BITS) - 1:
            raise ValueError(
                "split() of what another split() gave is not possible; let the method return one "
                "flat tuple"
            )
        # Kept, so that calls that take the same members are known to be the same.
        members: tuple[Node, ...] = getattr(self, "members", ())
        if len(members) != count:
            call = self.source >> CALL_BITS
            members = self.members = tuple(
                Node(self.graph, packed(call, part, count), self.alone) for part in range(count)
            )
        return members

    def nobatch(self) -> "Node":
        """The same as one value that any number of calls share, such as a table to look up in: a
        method gets it once, as the call has given it, and not as a row for each of its calls."""
        if not self.alone and not hasattr(self, "shared"):
            self.shared = Node(self.graph, self.source, True)
        return self if self.alone else self.shared


class Recorder:
    """Records calls. The same call is recorded once, however often it is added: what is random in
    it, as dropout, is then the same too."""

    def __init__(self) -> None:
        self._graph = object()
        self._known: dict[Any, Node] = {}
        self._table: dict[tuple[str, tuple[Any, ...]], int] = {}
        self._kinds: list[Signature] = []
        self._signatures: list[int] = []
        # Flat, as a list for each call would keep Python's garbage collector busy.
        self._counts: list[int] = []
        self._reads: list[int] = []
        self._words: list[int] = []
        self._tensors: list[Tensor] = []

    def add(self, op: str, *args: Any) -> Node:
        """Record a call of the module's method `op`, and return what it will give.

        The method gets many such calls at once, and of each argument one tensor with a row for each
        call: an int becomes a number in an int64 tensor of shape (calls,); a node, or a tensor of
        shape (1, …), becomes a row; a list of nodes becomes a Ragged, which has the rows of all
        lists; an empty list becomes None, in calls of their own. It has to return a tensor with a
        row for each call, in order, or a tuple of such tensors, which `split` tells apart. Without
        arguments, or if all are empty lists and nodes with `nobatch`, it is called once, and what
        it returns is the same for all. A tensor is kept and not copied: what is written into it
        later is what the method gets.

        Raises TypeError for any other argument, and ValueError for a node of another recorder.
        """
        try:
            key = op, args
            known = self._known.get(key)
        except TypeError:  # a list has no hash
            key = op, tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
            known = None
            with suppress(TypeError):  # what else has none is refused below
                known = self._known.get(key)
        if known is not None:
            return known
        if not isinstance(op, str):
            raise TypeError(f"{op!r} is no name of a method; write it as in add('leaf', 3)")
        reads, words = self._reads, self._words
        first_read, first_word = len(reads), len(words)
        kinds: list[Any] = []
        try:
            for arg in args:
                kind = type(arg)
                if kind is Node:
                    if arg.graph is not self._graph:
                        raise ValueError(f"an argument of {op!r} is a node of another recorder")
                    kinds.append(self._alone(arg) if arg.alone else NODE)
                    reads.append(arg.source)
                elif kind is int:
                    kinds.append(INT)
                    words.append(arg)
                else:
                    kinds.append(self._other(op, arg))
        except (TypeError, ValueError):
            del reads[first_read:], words[first_word:]
            raise
        signature = op, tuple(kinds)
        code = self._table.get(signature)
        if code is None:
            code = self._table[signature] = len(self._kinds)
            self._kinds.append(Signature(*signature))
        signatures = self._signatures
        node = self._known[key] = Node(self._graph, len(signatures) << CALL_BITS, False)
        signatures.append(code)
        self._counts.append(len(reads) - first_read)
        return node

    def graph(self, outputs: Sequence[Sequence[Node]]) -> Graph:
        """All recorded calls, with these outputs: of each the nodes whose rows it has, in order."""
        kinds, signatures = [*self._kinds], [*self._signatures]
        counts, reads, words = [*self._counts], [*self._reads], [*self._words]
        for number, nodes in enumerate(outputs):
            for node in nodes:
                if type(node) is not Node or node.graph is not self._graph:
                    raise ValueError(
                        f"output {number} has {node!r}, and is of nodes of this recorder alone"
                    )
            signatures.append(len(kinds))
            kinds.append(Signature(number, (LIST,)))
            words.append(len(nodes))
            counts.append(len(nodes))
            reads += [node.source for node in nodes]
        givers = [read >> CALL_BITS for read in reads]
        takers = chain.from_iterable(map(repeat, signatures, counts))
        edges = zip(map(signatures.__getitem__, givers), takers, strict=True)
        table = SignatureTable(tuple(kinds), frozenset(edges))
        try:
            numbers = np.array(words, dtype=np.int64)
        except OverflowError:
            largest = max(words, key=abs)
            raise ValueError(
                f"an argument is {largest}; write an int of 64 bits, from -2**63 to 2**63 - 1"
            ) from None
        return Graph(
            table,
            np.array(signatures, dtype=np.int32),
            np.array(depths(signatures, counts, givers, table.stages()), dtype=np.int32),
            np.array(reads, dtype=np.int64),
            numbers,
            tuple(self._tensors),
        )

    def _alone(self, node: Node) -> Any:
        """The kind of a node with nobatch()."""
        call = node.source >> CALL_BITS
        signature = self._kinds[self._signatures[call]]
        return (WHOLE, signature, node.source - packed(call)) if signature.once else LONE

    def _other(self, op: str, arg: Any) -> Any:
        """The kind of an argument that is neither a node nor an int."""
        if isinstance(arg, list | tuple):
            for node in arg:
                if type(node) is not Node or node.graph is not self._graph or node.alone:
                    raise TypeError(
                        f"a list among the arguments of {op!r} has {node!r}, and is of nodes of "
                        "this recorder alone, without nobatch()"
                    )
                self._reads.append(node.source)
            if arg:
                self._words.append(len(arg))
            return LIST if arg else NONE
        if isinstance(arg, Tensor):
            self._words.append(len(self._tensors))
            self._tensors.append(one_row(op, arg))
            return TENSOR, tuple(arg.shape[1:]), arg.dtype
        self._words.append(whole_number(op, arg))
        return INT


def one_row(op: str, arg: Tensor) -> Tensor:
    """An argument that is a tensor, if it is the row of one call; else a ValueError."""
    if not arg.ndim or len(arg) != 1:
        raise ValueError(
            f"an argument of {op!r} is a tensor of shape {tuple(arg.shape)}; write one of shape "
            "(1, …), the row of this call"
        )
    return arg


def whole_number(op: str, arg: Any) -> int:
    """An argument that is an int, a bool or a whole number of numpy; else a TypeError."""
    if not isinstance(arg, int | np.integer):
        raise TypeError(
            f"an argument of {op!r} is {arg!r}; write an int, a node, a list of nodes or a tensor "
            "of shape (1, …)"
        )
    return int(arg)
