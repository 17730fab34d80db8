"""The planning of batched calls for many graphs, with numpy and without Python for each call."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .record import (
    CALL_BITS,
    INT,
    LIST,
    MAX_PARTS,
    NODE,
    NONE,
    PART_BITS,
    TENSOR,
    Graph,
    Signature,
    SignatureTable,
)
from .schedule import (
    Argument,
    ArgumentRow,
    BatchedCall,
    CallSchedule,
    GatheredRows,
    IntArgument,
    ListArgument,
    OutputTransfer,
    SharedArgument,
    StackedArgument,
)
from .stages import call_depths

Ids = NDArray[np.int64]

PART_MASK = (1 << CALL_BITS) - 1
"""The bits of a read that encode which part of a result it takes, and the number of parts."""


def merge(graphs: Iterable[Graph]) -> CallSchedule:
    """Plan the recorded calls of all graphs (examples) as a few batched calls on a module.

    There is one batched call per signature, stage and depth. Each output has the rows of all
    graphs, in their order. Raises ValueError if graphs have different numbers of outputs, or if
    calls in one batch need different values for an argument that they share (`nobatch`).
    """
    graphs = [*graphs]
    if not graphs:
        return CallSchedule((), torch.empty(0, dtype=torch.int64), (0,), (), 0, ())
    calls = _line_up(graphs)
    plan = _Plan(calls)
    taken = [plan.plan_inputs(number) for number in range(len(calls.launches))]
    # Transfers of a batched call are planned last, since all later calls request rows of it first.
    steps = [
        BatchedCall(
            calls.launches[number].op, plan.count(number), *taking, plan.plan_transfers(number)
        )
        for number, taking in enumerate(taken)
    ]
    return CallSchedule(
        tuple(steps),
        torch.from_numpy(np.concatenate([np.empty(0, np.int64), *plan.pieces])),
        tuple(map(len, plan.pieces)),
        tuple(tensor for graph in graphs for tensor in graph.tensors),
        plan.slots,
        tuple(plan.sizes[output] for output in sorted(plan.sizes)),
    )


@dataclass(frozen=True)
class _Calls:
    """The recorded calls of all graphs, sorted so that those of one batched call are adjacent.

    A launch is a batched call; a place is the position of a call in the sorted order.
    """

    launches: list[Signature]
    edges: list[int]
    """The place at which each launch begins, and the number of calls: (launches + 1,)."""
    read_begins: Ids
    """The index of each place's first read, shape (calls,)."""
    word_begins: Ids
    """The index of each place's first scalar, shape (calls,)."""
    givers: Ids
    """The launch that produces each read, above the bits of the part: shape (reads,)."""
    rows: Ids
    """The row of the producing launch's result that each read takes, shape (reads,)."""
    words: Ids
    first_tensors: Ids
    """The index of the first tensor of each place's graph, shape (calls,)."""


def _line_up(graphs: Sequence[Graph]) -> _Calls:
    signatures, numbers, stage, depth = _common(graphs)
    calls = np.array([len(graph.signatures) for graph in graphs])
    first_calls = np.cumsum(calls) - calls
    # Sorted by stage, depth and signature; the sort is stable, so equal calls stay in the order of
    # graphs and calls. Keys of 16 bits are sorted in a tenth of the time.
    ranks = np.unique(stage, return_inverse=True)[1]
    deepest = int(depth.max(initial=0)) + 1
    keys = (ranks[numbers] * deepest + depth) * len(signatures) + numbers
    narrow = len(signatures) * deepest * len(stage) < 2**16
    order = np.argsort(keys.astype(np.uint16) if narrow else keys, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    ordered = keys[order]
    edges = np.flatnonzero(np.diff(ordered, prepend=-1, append=-1))
    of_launch = numbers[order[edges[:-1]]]
    launches = [signatures[number] for number in of_launch.tolist()]
    launch_of = np.repeat(np.arange(len(launches)), np.diff(edges))

    words = np.concatenate([graph.scalars for graph in graphs])
    word_begins, read_counts = _counts(signatures, numbers, words)
    read_begins = np.cumsum(read_counts) - read_counts

    reads = np.concatenate([graph.reads for graph in graphs])
    read_calls = (reads >> CALL_BITS) + np.repeat(
        first_calls, [len(graph.reads) for graph in graphs]
    )
    places = place[read_calls]
    givers = launch_of[places]
    rows = places - edges[givers]
    once = np.array([signature.is_single_call for signature in launches])
    if once.any():
        rows[once[givers]] = 0
    tensors = np.array([len(graph.tensors) for graph in graphs])
    return _Calls(
        launches,
        edges.tolist(),
        read_begins[order],
        word_begins[order],
        givers << CALL_BITS | reads & PART_MASK,
        rows,
        words,
        np.repeat(np.cumsum(tensors) - tensors, calls)[order],
    )


def _common(graphs: Sequence[Graph]) -> tuple[list[Signature], Ids, Ids, Ids]:
    """Combine the signature tables of all graphs, and compute their calls' stages and depths.

    Returns the distinct signatures, the number of each call's signature, the stage of each
    signature, and the depth of each call in its stage.
    """
    tables: dict[SignatureTable, list[int]] = {}
    signatures: dict[Signature, int] = {}
    edges = set()
    for graph in graphs:
        if graph.table not in tables:
            numbers = [
                signatures.setdefault(signature, len(signatures))
                for signature in graph.table.signatures
            ]
            tables[graph.table] = numbers
            edges |= {(numbers[giver], numbers[taker]) for giver, taker in graph.table.edges}
    stage = SignatureTable(tuple(signatures), frozenset(edges)).stages()
    outputs = {sum(isinstance(kind.op, int) for kind in table.signatures) for table in tables}
    if len(outputs) > 1:
        raise ValueError(
            f"graphs with {' and '.join(map(str, sorted(outputs)))} outputs cannot be merged; let "
            "all have the same outputs"
        )
    if len(tables) == 1:
        all_numbers = np.concatenate([graph.signatures for graph in graphs])
        depth = np.concatenate([graph.depths for graph in graphs])
    else:
        all_numbers = np.concatenate(
            [np.array(tables[graph.table])[graph.signatures] for graph in graphs]
        )
        stay = {table: _same_stages(table, numbers, stage) for table, numbers in tables.items()}
        depth = np.concatenate(
            [
                graph.depths
                if stay[graph.table]
                else _depths_among(graph, tables[graph.table], stage)
                for graph in graphs
            ]
        )
    return [*signatures], all_numbers.astype(np.int64), np.array(stage), depth.astype(np.int64)


def _same_stages(table: SignatureTable, numbers: Sequence[int], stage: Sequence[int]) -> bool:
    """Return whether depths computed with a table's own stages hold with those of all graphs.

    They do if the same edges stay within a stage.
    """
    own = table.stages()
    return all(
        (own[giver] == own[taker]) == (stage[numbers[giver]] == stage[numbers[taker]])
        for giver, taker in table.edges
    )


def _depths_among(graph: Graph, numbers: Sequence[int], stage: Sequence[int]) -> Ids:
    """Recompute the depths of a graph's calls with the stages of the signatures of all graphs."""
    own = [stage[number] for number in numbers]
    _, counts = _counts(graph.table.signatures, graph.signatures, graph.scalars)
    givers = graph.reads >> CALL_BITS
    return np.array(call_depths(graph.signatures.tolist(), counts.tolist(), givers.tolist(), own))


def _counts(signatures: Sequence[Signature], numbers: NDArray[Any], words: Ids) -> tuple[Ids, Ids]:
    """Return where the scalars of each recorded call begin, and how many results it reads."""
    word_counts = np.array([signature.scalar_count for signature in signatures])[numbers]
    begins = np.cumsum(word_counts) - word_counts
    reads = np.array([signature.reads for signature in signatures])[numbers]
    for number, signature in enumerate(signatures):
        for place in signature.lists:
            mine = np.flatnonzero(numbers == number)
            reads[mine] += words[begins[mine] + place]
    return begins, reads


class _Plan:
    """The plan of the rows that batched calls take from each other, and of their row indices."""

    def __init__(self, calls: _Calls) -> None:
        self.calls = calls
        self.pieces: list[Ids] = []
        self.slots = 0
        self.sizes: dict[int, Ids] = {}
        self._wanted: defaultdict[int, dict[int, list[tuple[int, Ids]]]] = defaultdict(dict)
        """The slots that take rows of each part of a launch, with these rows."""
        self._whole: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """The parts of a launch that slots take unchanged."""

    def plan_inputs(self, launch: int) -> tuple[tuple[GatheredRows, ...], tuple[Argument, ...]]:
        """Plan the inputs of a batched call; return the rows gathered for it and its arguments."""
        calls, signature = self.calls, self.calls.launches[launch]
        first, last = calls.edges[launch : launch + 2]
        reads, words = calls.read_begins[first:last], calls.word_begins[first:last]
        nodes: list[Ids] = []
        lists: list[GatheredRows] = []
        arguments: list[Argument] = []
        for kind in signature.kinds:
            if kind == NODE:
                arguments.append(ArgumentRow(len(nodes)))
                nodes.append(reads)
                reads = reads + 1
            elif kind == INT:
                arguments.append(IntArgument(self._piece(calls.words[words])))
                words = words + 1
            elif kind == NONE:
                arguments.append(None)
            elif kind == LIST:
                lengths = calls.words[words]
                owner = np.repeat(np.arange(last - first), lengths)
                begins = reads - (np.cumsum(lengths) - lengths)
                members = begins[owner] + np.arange(len(owner))
                if isinstance(signature.op, int):
                    self.sizes[signature.op] = lengths
                else:
                    number = signature.kinds.count(NODE) + len(lists)
                    arguments.append(ListArgument(number, self._piece(owner)))
                if len(members):
                    lists.append(self._ask(members))
                reads, words = reads + lengths, words + 1
            elif kind[0] == TENSOR:
                numbers = calls.words[words] + calls.first_tensors[first:last]
                arguments.append(StackedArgument(tuple(numbers.tolist())))
                words = words + 1
            else:
                arguments.append(SharedArgument(self._ask_shared(signature, reads)))
                reads = reads + 1
        return (*self._ask_together(nodes), *lists), tuple(arguments)

    def plan_transfers(self, launch: int) -> tuple[OutputTransfer, ...]:
        """Plan the transfers of a batched call's results, by part, to the slots of later calls."""
        count = self.count(launch)
        gives = [
            OutputTransfer(*_part(part), None, (slot,), ())
            for part, slot in self._whole.get(launch, ())
        ]
        for part, wanted in sorted(self._wanted.get(launch, {}).items()):
            rows = wanted[0][1] if len(wanted) == 1 else np.concatenate([r for _, r in wanted])
            all_in_order = len(rows) == count and (rows == np.arange(count)).all()
            gives.append(
                OutputTransfer(
                    *_part(part),
                    None if all_in_order else self._piece(rows),
                    tuple(slot for slot, _ in wanted),
                    tuple(len(rows) for _, rows in wanted),
                )
            )
        return tuple(gives)

    def count(self, launch: int) -> int:
        """Return the number of rows of a batched call's results."""
        first, last = self.calls.edges[launch : launch + 2]
        return 1 if self.calls.launches[launch].is_single_call else last - first

    def _piece(self, numbers: Ids) -> int:
        self.pieces.append(numbers)
        return len(self.pieces) - 1

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _ask(self, reads: Ids) -> GatheredRows:
        """Plan to gather in one slot the result rows that some reads take from earlier calls."""
        return self._want(reads, 1, *_sorted_by(self.calls.givers[reads]))

    def _ask_together(self, arguments: list[Ids]) -> list[GatheredRows]:
        """Plan to gather the rows of each argument's reads, in one slot if they have one shape."""
        if len(arguments) > 1:
            reads = np.concatenate(arguments)
            by, cuts = _sorted_by(self.calls.givers[reads])
            # Rows of one producer have one shape, and so do all rows of an argument.
            size, last = len(arguments[0]), cuts[1:] - 1
            ends = cuts[:-1] if by is None else by[cuts[:-1]], last if by is None else by[last]
            if _linked(ends[0] // size, ends[1] // size, len(arguments)):
                return [self._want(reads, len(arguments), by, cuts)]
        return [self._ask(reads) for reads in arguments]

    def _want(self, reads: Ids, arguments: int, by: Ids | None, cuts: Ids) -> GatheredRows:
        """Plan a new slot for the rows of reads, which `by` sorts by the calls producing them."""
        rows, givers = self.calls.rows[reads], self.calls.givers[reads]
        if by is not None:
            rows, givers = rows[by], givers[by]
        slot = self._slot()
        ends = cuts.tolist()
        for giver, first, last in zip(givers[cuts[:-1]].tolist(), ends, ends[1:], strict=False):
            parts = self._wanted[giver >> CALL_BITS]
            parts.setdefault(giver & PART_MASK, []).append((slot, rows[first:last]))
        if by is None:
            return GatheredRows(slot, None, arguments)
        back = np.empty_like(by)
        back[by] = np.arange(len(by))
        return GatheredRows(slot, self._piece(back), arguments)

    def _ask_shared(self, signature: Signature, reads: Ids) -> int:
        """Return the slot of a value that all recorded calls of a batched call share."""
        givers, rows = self.calls.givers[reads], self.calls.rows[reads]
        if (givers != givers[0]).any() or (rows != rows[0]).any():
            raise ValueError(
                f"calls of {signature.op!r} in one batch get different values by nobatch(), "
                "which is for one shared value; leave nobatch() out, or record that value with "
                "a method that has no arguments"
            )
        giver = int(givers[0])
        if self.count(giver >> CALL_BITS) > 1:
            return self._ask(reads[:1]).slot
        slot = self._slot()
        self._whole[giver >> CALL_BITS].append((giver & PART_MASK, slot))
        return slot


def _part(part: int) -> tuple[int, int]:
    """Decode the low bits of a read: the part of a result that it takes, and the part count."""
    return part & MAX_PARTS, part >> PART_BITS


def _sorted_by(givers: Ids) -> tuple[Ids | None, Ids]:
    """Return the order that sorts reads by the calls that produce their rows, and its bounds.

    The order is None if they are sorted already.
    """
    steps = np.diff(givers)
    by = None
    if (steps < 0).any():
        by = np.argsort(givers, kind="stable")
        steps = np.diff(givers[by])
    inner = np.flatnonzero(steps) + 1
    return by, np.concatenate([[0], inner, [len(givers)]])


def _linked(first: Ids, last: Ids, count: int) -> bool:
    """Return whether calls that produce rows of several arguments link all `count` arguments.

    A producer connects two arguments: the first and the last one that take its rows.
    """
    linked = {0}
    pairs = {*zip(first.tolist(), last.tolist(), strict=True)}
    for _ in range(count):
        linked |= {number for pair in pairs if linked & {*pair} for number in pair}
    return len(linked) == count
