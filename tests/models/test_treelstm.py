"""TreeLSTMs are the equations of Tai et al. 2015, written out for one node after the other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lsgd.fold import Graph, Recorder, Unfold, merge
from lsgd.models.treelstm import TREE_LSTMS, BinaryTreeLSTM, ChildSumTreeLSTM, TreeLSTM, add_nodes
from lsgd.text.sst import ABSENT

WORDS, CLASSES, EMBEDDING, WIDTH = 7, 4, 3, 5
Values = NDArray[np.float64]


def network(kind: type[TreeLSTM]) -> TreeLSTM:
    model = kind(WORDS, CLASSES, embedding=EMBEDDING, width=WIDTH).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def sigmoid(x: Values) -> Values:
    return 1 / (1 + np.exp(-x))


def blocks(layer: torch.nn.Linear, rows: int, columns: int) -> tuple[list[list[Values]], list]:
    """The matrices and biases of a layer, by what they give and what they take."""
    weight, bias = (value.detach().numpy() for value in (layer.weight, layer.bias))
    return [np.split(part, columns, 1) for part in np.split(weight, rows)], np.split(bias, rows)


def leaf(model: TreeLSTM, word: int) -> tuple[Values, Values]:
    """h and c of a node without children (equations 2 to 8 and 9 to 14 alike)."""
    x = model.embedding.weight.detach().numpy()[word]
    ((w_i,), (w_o,), (w_u,)), (b_i, b_o, b_u) = blocks(model.input, 3, 1)
    c = sigmoid(w_i @ x + b_i) * np.tanh(w_u @ x + b_u)
    return sigmoid(w_o @ x + b_o) * np.tanh(c), c


def binary(model: BinaryTreeLSTM, *children: tuple[Values, Values]) -> tuple[Values, Values]:
    """h and c of a node without a word (equations 9 to 14, N = 2)."""
    u, b = blocks(model.gates, 5, 2)
    i, o, update, *forget = (
        sum((matrix @ h for matrix, (h, _) in zip(row, children, strict=True)), bias)
        for row, bias in zip(u, b, strict=True)
    )
    c = sigmoid(i) * np.tanh(update)
    for gate, (_, c_k) in zip(forget, children, strict=True):
        c = c + sigmoid(gate) * c_k
    return sigmoid(o) * np.tanh(c), c


def child_sum(model: ChildSumTreeLSTM, *children: tuple[Values, Values]) -> tuple[Values, Values]:
    """h and c of a node without a word (equations 2 to 8)."""
    h_sum = sum(h for h, _ in children)
    ((u_i,), (u_o,), (u_u,)), (b_i, b_o, b_u) = blocks(model.gates, 3, 1)
    ((u_f,),), (b_f,) = blocks(model.forget, 1, 1)
    c = sigmoid(u_i @ h_sum + b_i) * np.tanh(u_u @ h_sum + b_u)
    for h_k, c_k in children:
        c = c + sigmoid(u_f @ h_k + b_f) * c_k
    return sigmoid(u_o @ h_sum + b_o) * np.tanh(c), c


PLAIN: dict[str, Callable] = {"treelstm": binary, "childsum": child_sum}
# Where two neighbours are joined, one number in [0, 1) for each join.
FORESTS = st.lists(st.lists(st.floats(0, 1, exclude_max=True), max_size=8), min_size=1, max_size=5)


def grown(joins: list[float]) -> tuple[list[int], list[int]]:
    """The places of the children of a tree's nodes; its leaves come first."""
    left, right = ([ABSENT] * (len(joins) + 1) for _ in range(2))
    nodes = [*range(len(left))]
    for join in joins:
        at = int(join * (len(nodes) - 1))
        left.append(nodes[at])
        right.append(nodes[at + 1])
        nodes[at : at + 2] = [len(left) - 1]
    return left, right


@pytest.mark.parametrize("name", TREE_LSTMS)
@settings(max_examples=20)
@given(forest=FORESTS)
def test_any_trees_have_the_states_of_the_equations(name: str, forest: list[list[float]]) -> None:
    model = network(TREE_LSTMS[name])

    def states(f: Recorder | Unfold, joins: list[float]) -> list:
        # The words of a tree are 0, 1, 2, …
        return add_nodes(f, type(model), *grown(joins), lambda place: f.add("leaf", place % WORDS))

    (folded,) = merge([Graph.record(states, joins) for joins in forest]).apply(model)
    unfold = Unfold(model)
    (single,) = unfold.apply(model, [[row for joins in forest for row in states(unfold, joins)]])
    expected = []
    for joins in forest:
        mine: list[tuple[Values, Values]] = []
        for place, (left, right) in enumerate(zip(*grown(joins), strict=True)):
            node = PLAIN[name](model, mine[left], mine[right]) if left != ABSENT else None
            mine.append(node or leaf(model, place % WORDS))
        expected += [np.concatenate(node) for node in mine]
    for values in (folded, single):
        np.testing.assert_allclose(values.detach().numpy(), np.stack(expected), atol=1e-12)
    last = model.fc.weight.detach().numpy() @ expected[-1][:WIDTH] + model.fc.bias.detach().numpy()
    np.testing.assert_allclose(model.scores(folded)[-1].detach().numpy(), last, atol=1e-12)


def test_a_child_sum_takes_any_number_of_children_in_any_order() -> None:
    model = network(ChildSumTreeLSTM)

    def node(f: Recorder, words: list[int]) -> object:
        return f.add("node", [f.add("leaf", word) for word in words])

    families = [[3], [1, 2, 3], [6, 6, 0, 4, 5], [3, 2, 1]]
    schedule = merge([Graph.record(node, words) for words in families])
    assert schedule.launches == 2
    (states,) = schedule.apply(model)
    for words, state in zip(families, states.detach().numpy(), strict=True):
        expected = child_sum(model, *(leaf(model, word) for word in words))
        np.testing.assert_allclose(state, np.concatenate(expected), atol=1e-12)
    torch.testing.assert_close(states[1], states[3], rtol=0, atol=1e-14)
