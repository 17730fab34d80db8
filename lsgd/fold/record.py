"""The recorder of one example's calls, which records calls without running them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .stages import call_depths, call_stages

INT, NODE, LIST, NONE, SHARED = "int", "node", "list", "none", "lone"
"""The kinds of arguments: int, node, list of nodes, empty list, and node shared by all calls.

Two more kinds are tuples: (TENSOR, shape, dtype), and (SHARED_ONCE, signature, part), which is a
shared node whose call is made once.
"""
TENSOR, SHARED_ONCE = "tensor", "whole"

PART_BITS = 8
MAX_PARTS = 2**PART_BITS - 1
CALL_BITS = 2 * PART_BITS


class Signature(NamedTuple):
    """The method name and argument kinds of a recorded call; equal ones can be batched."""

    op: str | int
    """The name of the module's method, or the number of the graph's output."""
    kinds: tuple[Any, ...]
    """The kind of each argument."""

    @property
    def is_single_call(self) -> bool:
        """Whether all calls of this signature run as a single one, since no argument differs."""
        return all(
            kind == NONE or (type(kind) is tuple and kind[0] == SHARED_ONCE) for kind in self.kinds
        )

    @property
    def reads(self) -> int:
        """The number of arguments that are nodes, without the members of lists."""
        return len(self.kinds) - self.scalar_count - self.kinds.count(NONE)

    @property
    def scalar_count(self) -> int:
        """The number of arguments stored as one scalar: ints, tensors, and the lengths of lists."""
        return sum(map(_is_word, self.kinds))

    @property
    def lists(self) -> list[int]:
        """The positions of the lengths of lists among the scalar arguments."""
        return [number for number, kind in enumerate(filter(_is_word, self.kinds)) if kind == LIST]


def _is_word(kind: Any) -> bool:
    return kind in (INT, LIST) or (type(kind) is tuple and kind[0] == TENSOR)


class SignatureTable(NamedTuple):
    """The distinct signatures of a graph's recorded calls, and the dependencies between them."""

    signatures: tuple[Signature, ...]
    edges: frozenset[tuple[int, int]]
    """Pairs of signature numbers: a call of the second takes a result of a call of the first."""

    def stages(self) -> tuple[int, ...]:
        """Return the stage of each signature, in the order of which batched calls run."""
        return call_stages(len(self.signatures), self.edges)


@dataclass(frozen=True, eq=False)
class Graph:
    """The recorded calls of one example, as arrays small enough to send between processes.

    Calls come after those whose results they take; the last ones are the outputs.
    """

    table: SignatureTable
    signatures: NDArray[np.int32]
    """The number of each call's signature in the table, shape (calls,)."""
    depths: NDArray[np.int32]
    """The depth of each call in its stage, shape (calls,)."""
    reads: NDArray[np.int64]
    """The results that the calls take from other calls, call by call, encoded by `pack_read`."""
    scalars: NDArray[np.int64]
    """The scalar arguments, call by call: ints, numbers of tensors, and lengths of lists."""
    tensors: tuple[Tensor, ...]
    """The arguments that are tensors, each with one row."""

    @staticmethod
    def record(encode: Callable[..., Any], *example: Any) -> "Graph":
        """Record the calls of `encode(f, *example)` on a Recorder f, with its result as outputs.

        The result is a node or a list of nodes, whose rows form one output, or a tuple of these for
        several outputs.
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

    of = record
    """The name of `record` in version 0.1."""


def pack_read(call: int, part: int = 0, parts: int = 0) -> int:
    """Encode a reference to a recorded call's result, or to a part of it, as one number.

    With parts=0 it is the whole result.

    >>> [number >> CALL_BITS for number in (pack_read(3), pack_read(3, 1, 2))]
    [3, 3]
    """
    return call << CALL_BITS | parts << PART_BITS | part


class Node:
    """The future result of a recorded call: a tensor with one row, or a tuple of such tensors."""

    __slots__ = ("graph", "is_shared", "members", "shared", "source")

    def __init__(self, graph: object, source: int, alone: bool) -> None:
        self.graph, self.source, self.is_shared = graph, source, alone

    def split(self, count: int) -> "tuple[Node, ...]":
        """Return a node for each member of the tuple of `count` tensors that this call returns."""
        if not 0 < count <= MAX_PARTS:
            raise ValueError(f"split({count}) is not possible; write 1 to {MAX_PARTS}")
        if self.source & (1 << CALL_BITS) - 1:
            raise ValueError(
                "split() of a result of split() is not possible; let the method return one flat "
                "tuple"
            )
        # Cached, so that calls with the same members as arguments are recognised as the same call.
        members: tuple[Node, ...] = getattr(self, "members", ())
        if len(members) != count:
            call = self.source >> CALL_BITS
            members = self.members = tuple(
                Node(self.graph, pack_read(call, part, count), self.is_shared)
                for part in range(count)
            )
        return members

    def nobatch(self) -> "Node":
        """Return this node as a value shared by any number of calls, such as an embedding table.

        A method gets the value once, as its call returned it, and not as a row for each call.
        """
        if not self.is_shared and not hasattr(self, "shared"):
            self.shared = Node(self.graph, self.source, True)
        return self if self.is_shared else self.shared


class Recorder:
    """A recorder of a network's calls, which records equal calls once, however often added.

    So a random result, as with dropout, is the same for all of them.
    """

    def __init__(self) -> None:
        self._graph = object()
        self._known: dict[Any, Node] = {}
        self._table: dict[tuple[str, tuple[Any, ...]], int] = {}
        self._kinds: list[Signature] = []
        self._signatures: list[int] = []
        # Flat, since a list for each call would slow down Python's garbage collector.
        self._counts: list[int] = []
        self._reads: list[int] = []
        self._words: list[int] = []
        self._tensors: list[Tensor] = []

    def add(self, op: str, *args: Any) -> Node:
        """Record a call of the module's method `op` and return the node of its result.

        The method runs for many such calls at once, and gets for each argument one tensor with a
        row for each call: an int becomes a number in an int64 tensor of shape (calls,); a node, or
        a tensor of shape (1, …), becomes a row; a list of nodes becomes a Ragged, which has the
        rows of all lists; an empty list becomes None, in a batched call of its own. It must return
        a tensor with a row for each call, in order, or a tuple of such tensors, whose members
        `split` returns. Without arguments, or if all are empty lists and nodes with `nobatch`, it
        is called once, and all such calls share the result. A tensor is not copied: if it is
        written to later, the method gets the new values.

        Raises ValueError for a node of another recorder, and TypeError for any other argument,
        unless it equals that of a recorded call, as 1.0 equals 1.
        """
        try:
            key = op, args
            known = self._known.get(key)
        except TypeError:  # a list is not hashable
            key = op, tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
            known = None
            with suppress(TypeError):  # other unhashable arguments are rejected below
                known = self._known.get(key)
        if known is not None:
            return known
        if not isinstance(op, str):
            raise TypeError(f"{op!r} is not the name of a method; write for example add('leaf', 3)")
        reads, words = self._reads, self._words
        first_read, first_word = len(reads), len(words)
        kinds: list[Any] = []
        try:
            for arg in args:
                kind = type(arg)
                if kind is Node:
                    if arg.graph is not self._graph:
                        raise ValueError(f"an argument of {op!r} is a node of another recorder")
                    kinds.append(self._alone(arg) if arg.is_shared else NODE)
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
        """Return the graph of all recorded calls, with an output for each list of nodes."""
        kinds, signatures = [*self._kinds], [*self._signatures]
        counts, reads, words = [*self._counts], [*self._reads], [*self._words]
        for number, nodes in enumerate(outputs):
            for node in nodes:
                if type(node) is not Node or node.graph is not self._graph:
                    raise ValueError(
                        f"output {number} has {node!r}, and may hold only nodes of this recorder"
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
            np.array(call_depths(signatures, counts, givers, table.stages()), dtype=np.int32),
            np.array(reads, dtype=np.int64),
            numbers,
            tuple(self._tensors),
        )

    def _alone(self, node: Node) -> Any:
        """Return the argument kind of a node that is shared by all calls of a batched call.

        These are the nodes of nobatch().
        """
        call = node.source >> CALL_BITS
        signature = self._kinds[self._signatures[call]]
        return (
            (SHARED_ONCE, signature, node.source - pack_read(call))
            if signature.is_single_call
            else SHARED
        )

    def _other(self, op: str, arg: Any) -> Any:
        """Record an argument that is neither a node nor an int, and return its kind."""
        if isinstance(arg, list | tuple):
            for node in arg:
                if type(node) is not Node or node.graph is not self._graph or node.is_shared:
                    raise TypeError(
                        f"a list argument of {op!r} has {node!r}, and may hold only "
                        "nodes of this recorder, without nobatch()"
                    )
                self._reads.append(node.source)
            if arg:
                self._words.append(len(arg))
            return LIST if arg else NONE
        if isinstance(arg, Tensor):
            self._words.append(len(self._tensors))
            self._tensors.append(check_one_row(op, arg))
            return TENSOR, tuple(arg.shape[1:]), arg.dtype
        self._words.append(as_int(op, arg))
        return INT


def check_one_row(op: str, arg: Tensor) -> Tensor:
    """Return a tensor argument of a call, or raise ValueError if it does not have one row."""
    if not arg.ndim or len(arg) != 1:
        raise ValueError(
            f"an argument of {op!r} is a tensor of shape {tuple(arg.shape)}; write one of shape "
            "(1, …), the row of this call"
        )
    return arg


def as_int(op: str, arg: Any) -> int:
    """Convert an int, bool or numpy integer argument to an int; raise TypeError for others."""
    if not isinstance(arg, int | np.integer):
        raise TypeError(
            f"an argument of {op!r} is {arg!r}; write an int, a node, a list of nodes or a tensor "
            "of shape (1, …)"
        )
    return int(arg)
