"""Programs for TorchFold 0.1.0 (Polosukhin 2017) run as they are, and its known faults do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lsgd.fold import Fold, Unfold

Make = Callable[[nn.Module], Any]


@pytest.fixture(params=["Fold", "Unfold"])
def make(request: pytest.FixtureRequest) -> Make:
    """Either of the two, for a module."""
    return Unfold if request.param == "Unfold" else lambda module: Fold(cuda=False)


# --- Its examples --------------------------------------------------------------------------------


class Children(nn.Module):
    """The network of its README: a state for each leaf, and one that takes in child after child."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 4)
        self.first = nn.Parameter(torch.randn(1, 4))
        self.cell = nn.GRUCell(4, 4)

    def leaf(self, word: Tensor) -> Tensor:
        return self.words(word)

    def init(self) -> Tensor:
        return self.first

    def child(self, prev: Tensor, child: Tensor) -> Tensor:
        return self.cell(child, prev)


def dfs(f: Any, node: Any) -> Any:
    if isinstance(node, int):
        return f.add("leaf", node)
    prev = f.add("init")
    for child in node:
        prev = f.add("child", prev, dfs(f, child))
    return prev


def recursion(module: Any, node: Any) -> Tensor:
    if isinstance(node, int):
        return module.leaf(torch.tensor([node]))
    prev = module.init()
    for child in node:
        prev = module.child(prev, recursion(module, child))
    return prev


TREES = [(1, (2, 3, 4), (5,)), 6, ((), (7, 7)), (1, (2, 3, 4), (5,))]


def test_the_example_of_its_readme(make: Make) -> None:
    module = Children()
    f = make(module)
    (states,) = f.apply(module, [[dfs(f, tree) for tree in TREES]])
    torch.testing.assert_close(states, torch.cat([recursion(module, tree) for tree in TREES]))


class Spinn(nn.Module):
    """Its example for SNLI: a binary TreeLSTM, whose calls give a hidden state and a memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.Embedding(10, 4)
        self.left, self.right = nn.Linear(4, 20), nn.Linear(4, 20)
        self.out = nn.Linear(4, 3)

    def leaf(self, word: Tensor) -> tuple[Tensor, Tensor]:
        return self.embeddings(word), torch.zeros(len(word), 4)

    def children(
        self, left_h: Tensor, left_c: Tensor, right_h: Tensor, right_c: Tensor
    ) -> tuple[Tensor, Tensor]:
        gates = self.left(left_h)
        gates += self.right(right_h)
        a, i, f1, f2, o = gates.chunk(5, 1)
        c = a.tanh() * i.sigmoid() + f1.sigmoid() * left_c + f2.sigmoid() * right_c
        return o.sigmoid() * c.tanh(), c

    def logits(self, state: Tensor) -> Tensor:
        return self.out(state)


def encode_pair(f: Any, tree: Any) -> Any:
    if isinstance(tree, int):
        return f.add("leaf", tree).split(2)
    left_h, left_c = encode_pair(f, tree[0])
    right_h, right_c = encode_pair(f, tree[1])
    return f.add("children", left_h, left_c, right_h, right_c).split(2)


def recursive_pair(module: Any, tree: Any) -> Any:
    if isinstance(tree, int):
        return module.leaf(torch.tensor([tree]))
    left, right = (recursive_pair(module, child) for child in tree)
    return module.children(*left, *right)


PAIRS = [((1, 2), (3, 4)), (5, (6, (7, 8))), 9]


def test_its_example_for_snli(make: Make) -> None:
    module = Spinn()
    f = make(module)
    all_logits, all_labels = [], []
    for label, tree in enumerate(PAIRS):
        all_logits.append(f.add("logits", encode_pair(f, tree)[0]))
        all_labels.append(label)
    logits, labels = f.apply(module, [all_logits, all_labels])
    nn.functional.cross_entropy(logits, labels).backward()
    assert (logits.shape, labels.tolist()) == ((3, 3), [0, 1, 2])
    expected = torch.cat([module.logits(recursive_pair(module, tree)[0]) for tree in PAIRS])
    torch.testing.assert_close(logits, expected)
    assert all(parameter.grad.any() for parameter in module.parameters())


# --- Its own tests -------------------------------------------------------------------------------


class Encoder(nn.Module):
    """The operations of its own tests."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 10)
        self.out = nn.Linear(20, 10)

    def concat(self, *rows: Tensor) -> Tensor:
        return torch.cat(rows)

    def value(self, word: Tensor) -> Tensor:
        return self.embed(word)

    def value2(self, word: Tensor) -> tuple[Tensor, Tensor]:
        return self.embed(word), self.embed(word)

    def attr(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out(torch.cat([left, right], 1))

    def logits(self, rows: Tensor, table: Tensor) -> Tensor:
        return rows @ table.T


def test_a_thousand_steps(make: Make) -> None:
    module = Encoder()
    f = make(module)
    first, _ = f.add("value2", 1).split(2)
    second, _ = f.add("value2", 2).split(2)
    row = first
    for _ in range(1000):
        row = f.add("attr", f.add("attr", row, second), second)
    assert f.apply(module, [[row]])[0].shape == (1, 10)


def test_one_value_for_all(make: Make) -> None:
    module = Encoder()
    f = make(module)
    words = [f.add("value", number % 10) for number in range(15)]
    table = f.add("concat", *words).nobatch()
    (logits,) = f.apply(module, [[f.add("logits", words[k % 10], table) for k in range(100)]])
    rows = module.embed.weight
    expected = rows @ torch.cat([rows, rows[:5]]).T
    assert logits.shape == (100, 15)
    torch.testing.assert_close(logits, expected.repeat(10, 1))


def test_sequences_of_other_lengths(make: Make) -> None:
    module = nn.Module()
    module.cell = nn.GRUCell(5, 4)
    launches = []

    def encode(row: Tensor, state: Tensor) -> Tensor:
        launches.append(len(row))
        return module.cell(row, state)

    module.encode = encode
    lengths = [2, 3, 5]
    begin = [torch.rand(1, 4) for _ in lengths]
    rows = [torch.rand(length, 1, 5) for length in lengths]
    f = make(module)
    states: list[Any] = [*begin]
    for k, sequence in enumerate(rows):
        for row in sequence:
            states[k] = f.add("encode", row, states[k])
    (last,) = f.apply(module, [states])
    if isinstance(f, Fold):
        # The first of each is a call with two tensors, and the others take a node.
        assert launches == [3, 3, 2, 1, 1]
    expected = list(begin)
    for k, sequence in enumerate(rows):
        for row in sequence:
            expected[k] = module.cell(row, expected[k])
    torch.testing.assert_close(last, torch.cat(expected))


# --- Its faults ----------------------------------------------------------------------------------


class Numbers(nn.Module):
    """Operations whose results can be done by hand."""

    def value(self, number: Tensor) -> Tensor:
        return number[:, None].float()

    def total(self, *rows: Tensor) -> Tensor:
        return sum(rows, start=torch.zeros_like(rows[0]))

    def scaled(self, row: Tensor, number: Tensor) -> Tensor:
        return row * (number if number.ndim > 1 else number[:, None])

    def both(self, number: Tensor) -> tuple[Tensor, Tensor]:
        return number[:, None].float(), -number[:, None].float()

    def table(self) -> Tensor:
        return torch.tensor([[10.0], [20.0]])

    def shifted(self, table: Tensor, row: Tensor) -> Tensor:
        return row + table.sum()

    def raised(self, row: Tensor, table: Tensor) -> Tensor:
        return self.shifted(table, row)

    def tables(self) -> tuple[Tensor, Tensor]:
        return self.table(), -self.table()

    def doubled(self, row: Tensor) -> Tensor:
        return torch.cat([row, row])

    def random(self, row: Tensor) -> Tensor:
        return torch.rand_like(row)


def numbers(f: Any, nodes: list[Any]) -> list[float]:
    return f.apply(f._module if isinstance(f, Unfold) else Numbers(), [nodes])[0].flatten().tolist()


@pytest.fixture
def f(make: Make) -> Any:
    return make(Numbers())


def test_calls_of_two_and_of_three_arguments(f: Any) -> None:
    """It made both with the arguments that both have: [3, 3]."""
    one, two, four = (f.add("value", number) for number in (1, 2, 4))
    assert numbers(f, [f.add("total", one, two), f.add("total", one, two, four)]) == [3, 7]


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3], [0, 1], [3]])
def test_one_value_for_all_as_the_first_argument(f: Any, chosen: list[int]) -> None:
    """It took the rows of the value for the number of calls: 4 rows for [0, 1], else an error."""
    table = f.add("table").nobatch()
    made = [f.add("shifted", table, f.add("value", number)) for number in range(4)]
    assert numbers(f, [made[number] for number in chosen]) == [30 + number for number in chosen]


def test_a_node_in_one_call_and_a_number_in_the_other(f: Any) -> None:
    """It could make them together only as one call, and refused it."""
    row = f.add("value", 3)
    assert numbers(f, [f.add("scaled", row, 2), f.add("scaled", row, row)]) == [6, 9]


def test_nobatch_leaves_its_node_alone(f: Any) -> None:
    """It marked the node itself: each other use of it was then one value for all, or an error."""
    one, two = f.add("value", 1), f.add("value", 2)
    one.nobatch()
    assert numbers(f, [f.add("total", node) for node in (one, two)]) == [1, 2]


def test_a_part_of_one_value_for_all(f: Any) -> None:
    """It forgot nobatch() where split() came after it: each call got a row of its own, or two."""
    table, _ = f.add("tables").nobatch().split(2)
    made = [f.add("raised", f.add("value", number), table) for number in (1, 2)]
    assert numbers(f, made) == [31, 32]


def test_the_same_part_is_the_same_argument() -> None:
    """It made the call twice, and with dropout in it the two differed."""
    f = Fold()
    pair = f.add("both", 1)
    first, second = (f.add("random", pair.split(2)[0]) for _ in range(2))
    assert first is second


def test_fewer_rows_than_calls_or_more() -> None:
    """It cut them into as many pieces as there were calls, each with some of the rows."""
    f = Fold()
    made = [f.add("doubled", f.add("value", number)) for number in range(3)]
    with pytest.raises(ValueError, match=r"'doubled' returned shape \(6, 1\) for 3 calls"):
        numbers(f, made[:1])


@pytest.mark.parametrize("count", [1, 3])
def test_parts_are_as_many_as_the_method_returns(make: Make, count: int) -> None:
    """It gave the first of two for split(1)."""
    module = Numbers()
    f = make(module)
    with pytest.raises(ValueError, match=rf"returned 2 tensors where split\({count}\)"):
        numbers(f, [f.add("both", 1).split(count)[0]])


def test_a_tensor_has_no_parts(f: Any) -> None:
    """It took the rows of the tensor for parts: the second of two calls for the first one's."""
    with pytest.raises(ValueError, match=r"no tuple of tensors where split\(2\)"):
        numbers(f, [f.add("value", number).split(2)[1] for number in (1, 2)])


def test_a_tuple_is_no_row() -> None:
    """It gave the tuple itself as an output."""
    f = Fold()
    with pytest.raises(ValueError, match="returned tuple where a tensor is asked of it"):
        numbers(f, [f.add("both", 1)])


def test_a_node_of_another_fold() -> None:
    """It took what stood at the same place in its own calls: 1 for 5."""
    f, other = Fold(), Fold()
    f.add("value", 1)
    with pytest.raises(ValueError, match="a node of another recorder"):
        f.add("total", other.add("value", 5))


def test_a_tensor_is_one_row(f: Any) -> None:
    """It put all rows of all calls one behind the other, whoever they were of."""
    with pytest.raises(ValueError, match=r"a tensor of shape \(2, 1\); write one of shape"):
        f.add("total", torch.ones(2, 1), f.add("value", 1))


def test_tensors_of_other_shapes_are_other_calls(f: Any) -> None:
    """It could not put them together."""
    pairs = [f.add("total", torch.ones(1, length)) for length in (2, 3)]
    module = f._module if isinstance(f, Unfold) else Numbers()
    assert [each.shape for each in f.apply(module, [[node] for node in pairs])] == [(1, 2), (1, 3)]


def test_whole_numbers_are_not_rounded_by_others(f: Any) -> None:
    """It let tensors of float and of int64 meet in one float tensor."""
    large = torch.tensor([[2**53 + 1]])
    whole, _ = (f.add("total", tensor) for tensor in (large, torch.ones(1, 1)))
    module = f._module if isinstance(f, Unfold) else Numbers()
    assert f.apply(module, [[whole]])[0].item() == 2**53 + 1


def test_an_empty_list_and_numbers_of_numpy(f: Any) -> None:
    """It knew no output without nodes, and no number but int."""
    assert numbers(f, []) == []
    assert numbers(f, [f.add("value", np.int64(3))]) == [3]
