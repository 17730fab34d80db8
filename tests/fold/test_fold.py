"""Folded calls give what single ones give: values, gradients, and in how few launches."""

import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lsgd.fold import Fold, Graph, Ragged, Unfold, merge

WIDE, NARROW, WORDS = 3, 2, 7


class Everything(nn.Module):
    """Operations with all kinds of arguments, on rows of three numbers and of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDE)
        self.weights = nn.Parameter(torch.randn(5, WIDE, WIDE))
        self.table = nn.Parameter(torch.randn(1, WIDE))
        self.narrowing = nn.Linear(WIDE, NARROW)
        self.widening = nn.Linear(NARROW, WIDE)
        self.double()

    def begin(self) -> Tensor:
        return self.table.tanh()

    def derived(self, table: Tensor) -> Tensor:
        return table * 2 - 1

    def both(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return table.cos(), table + 3

    def word(self, number: Tensor) -> Tensor:
        return self.words(number)

    def features(self, row: Tensor) -> Tensor:
        return (row @ self.weights[0]).sin()

    def mix(self, *rows: Tensor) -> Tensor:
        return sum(
            (row @ weight for row, weight in zip(rows, self.weights, strict=False)),
            start=torch.zeros_like(rows[0]),
        ).tanh()

    def step(self, row: Tensor, number: Tensor) -> Tensor:
        return (row * (number[:, None] / 1000 + 0.5)).cos()

    def look_up(self, row: Tensor, table: Tensor) -> Tensor:
        return row * (table @ self.weights[1])

    def halves(self, row: Tensor) -> tuple[Tensor, Tensor]:
        return row.exp().clamp(max=3), self.narrowing(row).tanh()

    def thirds(self, row: Tensor, narrow: Tensor) -> list[Tensor]:
        return [row.sin(), narrow.cos(), row + self.widening(narrow).tanh()]

    def gather(self, row: Tensor, members: Ragged | None) -> Tensor:
        if members is None:
            return row.tanh()
        return (row + members.sum(members.rows @ self.weights[2])).tanh()

    def join(self, members: Ragged, others: Ragged, number: Tensor) -> Tensor:
        joined = members.sum(members.rows) + self.widening(others.sum(others.rows))
        return (joined + number[:, None]).sin()


OPS = ("begin", "derived", "both", "word", "features", "mix", "mix", "mix", "step", "look_up",
       "halves", "thirds", "gather", "join", "again")  # fmt: skip
Program = list[tuple[str, list[int]]]
programs: st.SearchStrategy[Program] = st.lists(
    st.tuples(st.sampled_from(OPS), st.lists(st.integers(0, 1000), min_size=12, max_size=12)),
    max_size=14,
)


def run(f: Any, program: Program) -> tuple[list[Any], list[Any]]:
    """The wide and the narrow nodes that a program makes, with arguments chosen by its numbers."""
    table = f.add("begin")
    wide, narrow = [f.add("word", 0)], [f.add("halves", table).split(2)[1]]
    for op, numbers in program:
        first, second = wide[numbers[0] % len(wide)], narrow[numbers[1] % len(narrow)]
        some = [wide[number % len(wide)] for number in numbers[2 : 2 + numbers[11] % 6]]
        match op:
            case "begin":
                wide.append(f.add(op))
            case "derived":
                table = f.add(op, table.nobatch())
                wide.append(table)
            case "both":
                tables = f.add(op, table.nobatch()).split(2)
                wide += [f.add("look_up", first, each.nobatch()) for each in tables]
            case "word":
                wide.append(f.add(op, numbers[0] % WORDS))
            case "features":
                row = torch.tensor([numbers[:WIDE]], dtype=torch.float64) / 1000
                wide.append(f.add(op, row))
            case "mix":
                wide.append(f.add(op, first, *some[:4]))
            case "step":
                wide.append(f.add(op, first, numbers[3]))
            case "look_up":
                wide.append(f.add(op, first, table.nobatch()))
            case "halves":
                halves = f.add(op, first).split(2)
                wide.append(halves[0])
                narrow.append(halves[1])
            case "thirds":
                thirds = f.add(op, first, second).split(3)
                wide += [thirds[0], thirds[2]]
                narrow.append(thirds[1])
            case "gather":
                wide.append(f.add(op, first, some))
            case "join":
                members = narrow[: 1 + numbers[5] % len(narrow)]
                wide.append(f.add(op, [first, *some], members, numbers[6]))
            case "again":
                wide.append(f.add("mix", wide[-1], wide[-1]))
    return wide, narrow


def gradients(module: nn.Module, outputs: list[Tensor]) -> Tensor:
    """The gradient of all outputs, each number with a weight of its own."""
    module.zero_grad()
    sum(
        ((out * torch.arange(1, out.numel() + 1).view_as(out).sin()).sum() for out in outputs),
        start=torch.zeros((), dtype=torch.float64),
    ).backward()
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
            for p in module.parameters()
        ]
    )


def merged(module: nn.Module, batch: list[Program]) -> list[Tensor]:
    graphs = pickle.loads(pickle.dumps([Graph.record(run, program) for program in batch]))
    return merge(graphs).apply(module)


def together(f: Any, module: nn.Module, batch: list[Program]) -> list[Tensor]:
    made = [run(f, program) for program in batch]
    return f.apply(module, [[node for nodes in made for node in nodes[k]] for k in (0, 1)])


def close(found: Tensor, expected: Tensor, within: float) -> None:
    """Fails unless no number is off by more than `within` of the largest one, or of 1."""
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=0, atol=within * max(1.0, largest))


# Not shrunk: a batch is small as it is, and to make it smaller takes minutes.
@pytest.mark.slow
@settings(max_examples=50, phases=(Phase.reuse, Phase.generate))
@given(st.lists(programs, min_size=1, max_size=5))
def test_folded_is_single(batch: list[Program]) -> None:
    module = Everything()
    single = together(Unfold(module), module, batch)
    expected = gradients(module, single)
    for way in (lambda: merged(module, batch), lambda: together(Fold(), module, batch)):
        outputs = way()
        for output, alone in zip(outputs, single, strict=True):
            close(output, alone, 1e-12)
        close(gradients(module, outputs), expected, 1e-10)


def test_sizes_say_whose_rows_are_whose() -> None:
    batch: list[Program] = [[("word", [k] * 12)] * k for k in range(4)]
    graphs = [Graph.record(run, program) for program in batch]
    schedule = merge(graphs)
    module = Everything()
    wide, narrow = schedule.apply(module)
    assert [sizes.tolist() for sizes in schedule.sizes] == [[1, 2, 3, 4], [1, 1, 1, 1]]
    for graph, rows in zip(graphs, wide.split(schedule.sizes[0].tolist()), strict=True):
        torch.testing.assert_close(merge([graph]).apply(module)[0], rows)
    assert narrow.shape == (4, NARROW)


def test_nothing_to_do() -> None:
    module = Everything()
    assert merge([]).apply(module) == []
    assert merge([]).launches == 0
    empty = Graph.record(lambda f: [])
    (rows,) = merge([empty, empty]).apply(module)
    assert rows.shape == (0,)
    some = Graph.record(lambda f: [f.add("word", 3)])
    schedule = merge([empty, some, empty])
    assert schedule.apply(module)[0].shape == (1, WIDE)
    assert schedule.sizes[0].tolist() == [0, 1, 0]
    for f in (Fold(), Unfold(module)):
        assert [each.tolist() for each in f.apply(module, [[], [4, 5]])] == [[], [4, 5]]


def chain(f: Any, ops: str) -> Any:
    node = f.add("word", 1)
    for op in ops:
        node = f.add({"m": "mix", "f": "features"}[op], node)
    return node


def test_graphs_with_other_operations_share_their_stages() -> None:
    # In each chain mix and features are two stages; in all of them they are one, and depth counts.
    graphs = [Graph.record(chain, ops) for ops in ("mmf", "fmm", "mmm", "ff")]
    module = Everything()
    rows = merge(graphs).apply(module)[0]
    single = [merge([graph]).apply(module)[0] for graph in graphs]
    torch.testing.assert_close(rows, torch.cat(single), rtol=0, atol=1e-12)
    assert [merge([graph]).launches for graph in graphs] == [4, 4, 4, 3]
    # Of each of three depths both, but the fourth chain ends before the third.
    assert merge(graphs).launches == 1 + 2 + 2 + 2


def test_one_launch_for_the_last_step_of_all_depths() -> None:
    def encode(f: Any, length: int) -> list[Any]:
        nodes = [f.add("word", 0)]
        for _ in range(length):
            nodes.append(f.add("mix", nodes[-1]))
        return [f.add("step", node, 1) for node in nodes]

    graphs = [Graph.record(encode, length) for length in (1, 4, 9)]
    assert merge(graphs).launches == 1 + 9 + 1


def test_the_same_call_is_made_once() -> None:
    module = Everything()
    made = []
    module.word = lambda number: made.append(number.tolist()) or module.words(number)
    f = Fold()
    nodes = [f.add("mix", f.add("word", 2), f.add("word", word)) for word in (2, 3, 2)]
    first, second = (f.add("halves", node).split(2) for node in nodes[::2])
    assert nodes[0] is nodes[2]
    assert f.add("mix", first[0]) is f.add("mix", second[0])
    assert f.add("look_up", nodes[0], nodes[1].nobatch()) is f.add(
        "look_up", nodes[0], nodes[1].nobatch()
    )
    f.apply(module, [nodes])
    assert made == [[2, 3]]


def test_empty_lists_alone_are_one_call() -> None:
    """As a call without arguments: nothing would tell the method how many rows to return."""
    module = Everything()
    module.start = lambda members, table: module.table + table.sum()

    def encode(f: Any, words: list[int]) -> Any:
        start = f.add("start", [], f.add("begin").nobatch())
        return [f.add("mix", start, f.add("word", word)) for word in words] + [start]

    batch = [[1, 2], [3], []]
    schedule = merge([Graph.record(encode, words) for words in batch])
    assert schedule.launches == 4
    f = Unfold(module)
    single = f.apply(module, [[node for words in batch for node in encode(f, words)]])
    torch.testing.assert_close(schedule.apply(module), single, rtol=0, atol=1e-12)


def test_a_schedule_may_be_applied_again() -> None:
    module = Everything()
    schedule = merge([Graph.record(chain, "mfm")])
    first, second = (schedule.apply(module)[0] for _ in range(2))
    assert torch.equal(first, second)
    first.sum().backward()
    expected = module.weights.grad.clone()
    module.zero_grad()
    second.sum().backward(retain_graph=True)
    assert torch.equal(module.weights.grad, expected)
    second.sum().backward()
    torch.testing.assert_close(module.weights.grad, 2 * expected)


@pytest.mark.slow
def test_more_launches_than_16_bits_can_tell_apart() -> None:
    graphs = [Graph.record(chain, "m" * 9000), Graph.record(chain, "mf" * 20)]
    module = Everything()
    with torch.no_grad():
        rows = merge(graphs).apply(module)[0]
        single = torch.cat([merge([graph]).apply(module)[0] for graph in graphs])
    torch.testing.assert_close(rows, single, rtol=0, atol=1e-12)


def refusals() -> list[tuple[str, Callable[[Any], Any], str]]:
    node = Fold().add("word", 1)

    def two_tables(f: Any) -> Any:
        return [f.add("look_up", f.add("word", k), f.add("word", k).nobatch()) for k in (1, 2)]

    return [
        ("none", lambda f: f.add("word", None), "an argument of 'word' is None; write an int"),
        ("float", lambda f: f.add("word", 1.5), "an argument of 'word' is 1.5; write an int"),
        ("array", lambda f: f.add("word", np.zeros(2)), "an argument of 'word' is array"),
        ("64 bits", lambda f: f.add("word", 2**63), "is 9223372036854775808; write an int of 64"),
        (
            "method",
            lambda f: f.add(Everything.word, 1),
            "is not the name of a method; write for example",
        ),
        ("other", lambda f: f.add("mix", node), "a node of another recorder"),
        ("other list", lambda f: f.add("gather", [node]), "only nodes of this recorder"),
        ("lists", lambda f: f.add("gather", [[1]]), "a list argument of 'gather' has"),
        ("list of ints", lambda f: f.add("gather", [1, 2]), "a list argument of"),
        ("tensor", lambda f: f.add("features", torch.ones(2, 3)), r"shape \(2, 3\); write one of"),
        ("scalar", lambda f: f.add("features", torch.ones(())), r"shape \(\); write one of"),
        ("split", lambda f: f.add("halves", f.add("word", 1)).split(3)[0], "returned 2 tensors"),
        ("split 1", lambda f: f.add("halves", f.add("word", 1)).split(1)[0], "returned 2 tensors"),
        (
            "no split",
            lambda f: f.add("halves", f.add("word", 1)),
            "returned tuple instead of a tensor",
        ),
        ("split one", lambda f: f.add("word", 1).split(2)[0], "returned no tuple of tensors"),
        ("split none", lambda f: f.add("word", 1).split(0), "write 1 to 255"),
        ("split twice", lambda f: f.add("word", 1).split(2)[0].split(2), "return one flat tuple"),
        ("tables", two_tables, "get different values by nobatch"),
        ("shapes", lambda f: [*f.add("halves", f.add("word", 1)).split(2)], "of different shapes"),
        ("no output", lambda f: None, "returned None; let it return a node"),
        ("generator", lambda f: (f.add("word", k) for k in (1, 2)), "return a node, a list"),
        ("output", lambda f: [3], "output 0 has 3"),
        ("rows", lambda f: f.add("mix", f.add("total", f.add("word", 1)), f.add("word", 2)), "row"),
        ("more rows", lambda f: f.add("doubled", f.add("word", 1)), r"shape \(2, 3\) for 1 calls"),
        (
            "types",
            lambda f: [f.add("word", 1), f.add("half", f.add("word", 1))],
            "different shapes",
        ),
    ]


@pytest.mark.parametrize(
    ("encode", "message"), [pytest.param(*rest, id=name) for name, *rest in refusals()]
)
def test_what_cannot_be_right_is_refused(encode: Callable[[Any], Any], message: str) -> None:
    module = Everything()
    module.total = lambda rows: rows.sum()
    module.half = lambda rows: rows.float()
    module.doubled = lambda rows: torch.cat([rows, rows])
    with pytest.raises((TypeError, ValueError), match=message):
        merge([Graph.record(encode)]).apply(module)


def test_a_refused_call_leaves_no_trace() -> None:
    module = Everything()
    f = Fold()
    word = f.add("word", 1)
    with pytest.raises(TypeError):
        f.add("join", [word], 3, 1.5)
    node = f.add("step", word, 4)
    expected = module.step(module.word(torch.tensor([1])), torch.tensor([4]))
    assert torch.equal(f.apply(module, [[node]])[0], expected)


def test_graphs_with_other_outputs_are_refused() -> None:
    one, two = (
        Graph.record(lambda f: f.add("word", 1)),
        Graph.record(lambda f: (f.add("word", 1),) * 2),
    )
    with pytest.raises(ValueError, match="graphs with 1 and 2 outputs cannot be merged"):
        merge([one, two])


def test_one_value_for_all_may_be_of_any_shape() -> None:
    class Attention(nn.Module):
        def word(self, number: Tensor) -> Tensor:
            return number[:, None] * torch.ones(1, WIDE)

        def memory(self, *rows: Tensor) -> Tensor:
            return torch.cat(rows)

        def scores(self, row: Tensor, memory: Tensor) -> Tensor:
            return row @ memory.T

    def encode(f: Any) -> list[Any]:
        words = [f.add("word", number) for number in range(5)]
        memory = f.add("memory", *words).nobatch()
        return [f.add("scores", word, memory) for word in words]

    module = Attention()
    f = Fold()
    (rows,) = f.apply(module, [encode(f)])
    assert torch.equal(rows, 3.0 * torch.outer(torch.arange(5), torch.arange(5)))


def test_rows_may_be_without_numbers() -> None:
    module = nn.Module()
    module.word = lambda number: torch.empty(len(number), 0)
    module.join = lambda left, right: torch.cat([left, right], 1)
    graph = Graph.record(lambda f: f.add("join", f.add("word", 1), f.add("word", 2)))
    assert merge([graph]).apply(module)[0].shape == (1, 0)


def test_linear_in_the_calls() -> None:
    """A shared node is read by all at once, and no call copies what other calls have read."""
    sizes = []
    for length in (50, 100, 200):
        schedule = merge([Graph.record(chain, "m" * length)])
        sizes.append(sum(schedule.lengths) + sum(map(len, schedule.steps)))
    assert all(later < 2.2 * earlier for earlier, later in pairwise(sizes))
