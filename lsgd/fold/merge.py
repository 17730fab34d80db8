"""Plans the calls of many graphs as few large ones, with numpy and no Python for each call."""

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
    MOST_PARTS,
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
    BatchedCall,
    CallSchedule,
    Give,
    Ints,
    Lists,
    Rows,
    Shared,
    Stacked,
    TakenRow,
)
from .stages import depths

Ids = NDArray[np.int64]

PART = (1 << CALL_BITS) - 1
"""The bits of a read that say which part of a result it takes, and of how many."""


def merge(graphs: Iterable[Graph]) -> CallSchedule:
    """The calls of all graphs as few: those with one signature, stage and depth are one call. The
    outputs have the rows of all graphs, in their order.

    Raises ValueError if graphs have different numbers of outputs, or if a call for many would get
    several values as the one that all of them share (`nobatch`).
    """
    graphs = [*graphs]
    if not graphs:
        return CallSchedule((), torch.empty(0, dtype=torch.int64), (0,), (), 0, ())
    calls = _line_up(graphs)
    plan = _Plan(calls)
    taken = [plan.take(number) for number in range(len(calls.launches))]
    # What a launch gives is known when all that come behind it have said what they take.
    steps = [
        BatchedCall(calls.launches[number].op, plan.count(number), *taking, plan.give(number))
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
    """The calls of all graphs, sorted into launches; `place` counts them in this order."""

    launches: list[Signature]
    edges: list[int]
    """The place at which each launch begins, and the end: (launches + 1,)."""
    read_begins: Ids
    """The number of the first read of each place, shape (calls,)."""
    word_begins: Ids
    """The number of the first word of each place, shape (calls,)."""
    givers: Ids
    """The launch that gives what each read takes, above the bits of its part: shape (reads,)."""
    rows: Ids
    """The row that each read takes of what this launch gives, shape (reads,)."""
    words: Ids
    first_tensors: Ids
    """The number of the first tensor of each place's graph, shape (calls,)."""


def _line_up(graphs: Sequence[Graph]) -> _Calls:
    signatures, numbers, stage, depth = _common(graphs)
    calls = np.array([len(graph.signatures) for graph in graphs])
    first_calls = np.cumsum(calls) - calls
    # Sorted by stage, depth and signature, and by graph and call where these are the same. Numbers
    # of 16 bits are sorted in a tenth of the time.
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

    words = np.concatenate([graph.words for graph in graphs])
    word_begins, read_counts = _counts(signatures, numbers, words)
    read_begins = np.cumsum(read_counts) - read_counts

    reads = np.concatenate([graph.reads for graph in graphs])
    read_calls = (reads >> CALL_BITS) + np.repeat(
        first_calls, [len(graph.reads) for graph in graphs]
    )
    places = place[read_calls]
    givers = launch_of[places]
    rows = places - edges[givers]
    once = np.array([signature.once for signature in launches])
    if once.any():
        rows[once[givers]] = 0
    tensors = np.array([len(graph.tensors) for graph in graphs])
    return _Calls(
        launches,
        edges.tolist(),
        read_begins[order],
        word_begins[order],
        givers << CALL_BITS | reads & PART,
        rows,
        words,
        np.repeat(np.cumsum(tensors) - tensors, calls)[order],
    )


def _common(graphs: Sequence[Graph]) -> tuple[list[Signature], Ids, Ids, Ids]:
    """The signatures of all graphs, the number of each call's signature, the stage of each
    signature, and the depth of each call in its stage."""
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
    """Whether the edges that stay in a stage are the same among the stages of all graphs."""
    own = table.stages()
    return all(
        (own[giver] == own[taker]) == (stage[numbers[giver]] == stage[numbers[taker]])
        for giver, taker in table.edges
    )


def _depths_among(graph: Graph, numbers: Sequence[int], stage: Sequence[int]) -> Ids:
    """The depths of a graph's calls, if other graphs have put its signatures into one stage."""
    own = [stage[number] for number in numbers]
    _, counts = _counts(graph.table.signatures, graph.signatures, graph.words)
    givers = graph.reads >> CALL_BITS
    return np.array(depths(graph.signatures.tolist(), counts.tolist(), givers.tolist(), own))


def _counts(signatures: Sequence[Signature], numbers: NDArray[Any], words: Ids) -> tuple[Ids, Ids]:
    """Where the words of each call of these signatures begin, and how many reads it has."""
    word_counts = np.array([signature.words for signature in signatures])[numbers]
    begins = np.cumsum(word_counts) - word_counts
    reads = np.array([signature.reads for signature in signatures])[numbers]
    for number, signature in enumerate(signatures):
        for place in signature.lists:
            mine = np.flatnonzero(numbers == number)
            reads[mine] += words[begins[mine] + place]
    return begins, reads


class _Plan:
    """Who takes what from whom, and the numbers that this needs, piece by piece."""

    def __init__(self, calls: _Calls) -> None:
        self.calls = calls
        self.pieces: list[Ids] = []
        self.slots = 0
        self.sizes: dict[int, Ids] = {}
        self._wanted: defaultdict[int, dict[int, list[tuple[int, Ids]]]] = defaultdict(dict)
        """The slots that want rows of each part of a launch, and which."""
        self._whole: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """The parts of a launch that slots want as they are."""

    def take(self, launch: int) -> tuple[tuple[Rows, ...], tuple[Argument, ...]]:
        """Note what a launch takes; the rows that come to it, and the arguments made of them."""
        calls, signature = self.calls, self.calls.launches[launch]
        first, last = calls.edges[launch : launch + 2]
        reads, words = calls.read_begins[first:last], calls.word_begins[first:last]
        nodes: list[Ids] = []
        lists: list[Rows] = []
        arguments: list[Argument] = []
        for kind in signature.kinds:
            if kind == NODE:
                arguments.append(TakenRow(len(nodes)))
                nodes.append(reads)
                reads = reads + 1
            elif kind == INT:
                arguments.append(Ints(self._piece(calls.words[words])))
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
                    arguments.append(Lists(number, self._piece(owner)))
                if len(members):
                    lists.append(self._ask(members))
                reads, words = reads + lengths, words + 1
            elif kind[0] == TENSOR:
                numbers = calls.words[words] + calls.first_tensors[first:last]
                arguments.append(Stacked(tuple(numbers.tolist())))
                words = words + 1
            else:
                arguments.append(Shared(self._ask_shared(signature, reads)))
                reads = reads + 1
        return (*self._ask_together(nodes), *lists), tuple(arguments)

    def give(self, launch: int) -> tuple[Give, ...]:
        """What a launch gives, part by part, in the order in which slots expect it."""
        count = self.count(launch)
        gives = [
            Give(*_part(part), None, (slot,), ()) for part, slot in self._whole.get(launch, ())
        ]
        for part, wanted in sorted(self._wanted.get(launch, {}).items()):
            rows = wanted[0][1] if len(wanted) == 1 else np.concatenate([r for _, r in wanted])
            all_in_order = len(rows) == count and (rows == np.arange(count)).all()
            gives.append(
                Give(
                    *_part(part),
                    None if all_in_order else self._piece(rows),
                    tuple(slot for slot, _ in wanted),
                    tuple(len(rows) for _, rows in wanted),
                )
            )
        return tuple(gives)

    def count(self, launch: int) -> int:
        """The rows of a launch's results."""
        first, last = self.calls.edges[launch : launch + 2]
        return 1 if self.calls.launches[launch].once else last - first

    def _piece(self, numbers: Ids) -> int:
        self.pieces.append(numbers)
        return len(self.pieces) - 1

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _ask(self, reads: Ids) -> Rows:
        """Let the givers of some reads bring their rows."""
        return self._want(reads, 1, *_sorted_by(self.calls.givers[reads]))

    def _ask_together(self, arguments: list[Ids]) -> list[Rows]:
        """The same for the reads of each argument: at once, if their rows are of one shape."""
        if len(arguments) > 1:
            reads = np.concatenate(arguments)
            by, cuts = _sorted_by(self.calls.givers[reads])
            # Rows of one giver are of one shape, and so are those that meet in an argument.
            size, last = len(arguments[0]), cuts[1:] - 1
            ends = cuts[:-1] if by is None else by[cuts[:-1]], last if by is None else by[last]
            if _linked(ends[0] // size, ends[1] // size, len(arguments)):
                return [self._want(reads, len(arguments), by, cuts)]
        return [self._ask(reads) for reads in arguments]

    def _want(self, reads: Ids, arguments: int, by: Ids | None, cuts: Ids) -> Rows:
        """Note the rows of some reads, that are sorted by their givers."""
        rows, givers = self.calls.rows[reads], self.calls.givers[reads]
        if by is not None:
            rows, givers = rows[by], givers[by]
        slot = self._slot()
        ends = cuts.tolist()
        for giver, first, last in zip(givers[cuts[:-1]].tolist(), ends, ends[1:], strict=False):
            parts = self._wanted[giver >> CALL_BITS]
            parts.setdefault(giver & PART, []).append((slot, rows[first:last]))
        if by is None:
            return Rows(slot, None, arguments)
        back = np.empty_like(by)
        back[by] = np.arange(len(by))
        return Rows(slot, self._piece(back), arguments)

    def _ask_shared(self, signature: Signature, reads: Ids) -> int:
        """The slot of a value that all calls of a launch share."""
        givers, rows = self.calls.givers[reads], self.calls.rows[reads]
        if (givers != givers[0]).any() or (rows != rows[0]).any():
            raise ValueError(
                f"calls of {signature.op!r} that are made at once get different values by "
                "nobatch(), which is for one that all share; leave nobatch() out, or record that "
                "value with a method that has no arguments"
            )
        giver = int(givers[0])
        if self.count(giver >> CALL_BITS) > 1:
            return self._ask(reads[:1]).slot
        slot = self._slot()
        self._whole[giver >> CALL_BITS].append((giver & PART, slot))
        return slot


def _part(part: int) -> tuple[int, int]:
    """The part, and of how many, that the low bits of a read say."""
    return part & MOST_PARTS, part >> PART_BITS


def _sorted_by(givers: Ids) -> tuple[Ids | None, Ids]:
    """The order that sorts reads by their givers, or None if they are sorted, and where in it each
    giver begins, and the end."""
    steps = np.diff(givers)
    by = None
    if (steps < 0).any():
        by = np.argsort(givers, kind="stable")
        steps = np.diff(givers[by])
    inner = np.flatnonzero(steps) + 1
    return by, np.concatenate([[0], inner, [len(givers)]])


def _linked(first: Ids, last: Ids, count: int) -> bool:
    """Whether givers link all `count` arguments with each other. A giver links two of them: the
    first and the last one that it has rows for."""
    linked = {0}
    pairs = {*zip(first.tolist(), last.tolist(), strict=True)}
    for _ in range(count):
        linked |= {number for pair in pairs if linked & {*pair} for number in pair}
    return len(linked) == count
