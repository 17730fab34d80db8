"""What a stranger tries first: mixed precision, second derivatives, loaders, slips of the pen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lsgd.fold import Fold, Graph, Unfold, merge

TREES = [((1, 2), (3, (4, 5))), (1, 2), 3, ((((1, 2), 3), 4), 5)]
"""Pairs of pairs of words."""


class PairNetwork(nn.Module):
    """A network for trees of words, with the logits of their roots."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(8, 3)
        self.both = nn.Linear(6, 3)
        self.classes = nn.Linear(3, 2)

    def leaf(self, word: Tensor) -> Tensor:
        return self.words(word)

    def pair(self, left: Tensor, right: Tensor) -> Tensor:
        return self.both(torch.cat([left, right], 1)).tanh()

    def halves(self, row: Tensor) -> tuple[Tensor, Tensor]:
        return row.sin(), row.cos()

    def logits(self, row: Tensor) -> Tensor:
        return self.classes(row)


def encode(f: Any, tree: Any) -> Any:
    return f.add("logits", state(f, tree))


def state(f: Any, tree: Any) -> Any:
    if isinstance(tree, int):
        return f.add("leaf", tree)
    return f.add("pair", *(state(f, child) for child in tree))


def folded(module: nn.Module) -> Tensor:
    return merge([Graph.record(encode, tree) for tree in TREES]).apply(module)[0]


def single(module: nn.Module) -> Tensor:
    f = Unfold(module)
    return f.apply(module, [[encode(f, tree) for tree in TREES]])[0]


def first_and_second_gradients(module: nn.Module, logits: Tensor) -> list[Tensor]:
    parameters = [*module.parameters()]
    first = torch.autograd.grad(logits.square().sum(), parameters, create_graph=True)
    length = sum(gradient.square().sum() for gradient in first)
    return [*first, *torch.autograd.grad(length, parameters)]


# --- What torch offers ---------------------------------------------------------------------------


def test_double_backward() -> None:
    module = PairNetwork().double()
    torch.testing.assert_close(
        first_and_second_gradients(module, folded(module)),
        first_and_second_gradients(module, single(module)),
        rtol=1e-12,
        atol=1e-12,
    )


def test_autocast() -> None:
    """Leaves are float32 there and pairs bfloat16, and both are children of one launch."""
    module = PairNetwork()
    with torch.autocast("cpu", torch.bfloat16):
        logits, expected = folded(module), single(module)
    assert logits.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(logits, expected, rtol=0.02, atol=0.02)
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in module.parameters())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    module = PairNetwork()
    expected = torch.autograd.grad(folded(module).sum(), [*module.parameters()])
    plain, sizes = module.pair, []

    def pair(left: Tensor, right: Tensor) -> Tensor:
        sizes.append(len(left))
        return plain(left, right)

    module.pair = lambda left, right: checkpoint(pair, left, right, use_reentrant=reentrant)
    folded(module).sum().backward()
    torch.testing.assert_close([p.grad for p in module.parameters()], [*expected])
    # In each direction once, and backward in the other order.
    forward = sizes[: len(sizes) // 2]
    assert forward == [4, 2, 2, 1]
    assert sizes == forward + forward[::-1]


# --- Methods that change their arguments in place -------------------------------------------------


def test_numbers_changed_in_place_are_as_before_in_the_next_step() -> None:
    module = PairNetwork()
    words: list[list[int]] = []

    def leaf(word: Tensor) -> Tensor:
        words.append(word.tolist())
        return module.words(word.clamp_(max=1))

    module.leaf = leaf
    schedule = merge([Graph.record(lambda f: [f.add("leaf", word) for word in (0, 5)])])
    for _ in range(2):
        schedule.apply(module)
    assert words == [[0, 5], [0, 5]]


@pytest.mark.parametrize("graph", [torch.no_grad, torch.enable_grad])
def test_rows_changed_in_place_are_those_of_one_call(graph: Callable[[], Any]) -> None:
    """A node that others take too stays as it is. Where that would not be so, torch refuses it."""

    def all_states(f: Any, tree: Any) -> list[Any]:
        if isinstance(tree, int):
            return [f.add("leaf", tree)]
        left, right = (all_states(f, child) for child in tree)
        return [*left, *right, f.add("pair", left[-1], right[-1])]

    module = PairNetwork()
    schedule = merge([Graph.record(all_states, tree) for tree in TREES])
    module.pair = lambda left, right: (2 * left + right).tanh()
    expected = schedule.apply(module)[0]
    module.pair = lambda left, right: left.mul_(2).add_(right).tanh()
    with graph():
        if torch.is_grad_enabled():
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                schedule.apply(module)
        else:
            torch.testing.assert_close(schedule.apply(module)[0], expected)


# --- Slips are refused, those of a graph in test_fold.py -----------------------------------------


@pytest.mark.parametrize("arg", [1.5, [1, 2], torch.ones(2, 3)], ids=["float", "ints", "rows"])
def test_unfold_refuses_what_fold_does(arg: Any) -> None:
    """To debug with Unfold what Fold refuses must not go through, cut to an int."""
    with pytest.raises((TypeError, ValueError), match=r"a.* of.*'leaf'|write one of shape"):
        Unfold(PairNetwork()).add("leaf", arg)


def test_unfold_refuses_parts_that_are_not_there() -> None:
    f = Unfold(module := PairNetwork())
    leaf = f.add("leaf", 1)
    with pytest.raises(ValueError, match=r"no tuple of tensors, not the 2 of split\(2\)"):
        f.apply(module, [[leaf.split(2)[1]]])
    with pytest.raises(ValueError, match=r"returned 2 tensors, not the 1 of split\(1\)"):
        f.apply(module, [[f.add("halves", leaf).split(1)[0]]])


@pytest.mark.parametrize(
    "members",
    [[0.5, 1.7], [1, 2.0], [torch.ones(2, 3)], [torch.tensor(1)], [torch.ones(1, 3), 4]],
    ids=["floats", "float", "rows", "scalar", "both"],
)
@pytest.mark.parametrize("fold", [Fold, Unfold], ids=["Fold", "Unfold"])
def test_other_outputs(fold: Callable[..., Any], members: list[Any]) -> None:
    """Targets beside the nodes: torch would cut 0.5 to 0, and two rows would shift all others."""
    module = PairNetwork()
    f = fold(module) if fold is Unfold else fold()
    with pytest.raises(TypeError, match=r"an output has .*; use only nodes, only ints"):
        f.apply(module, [[f.add("leaf", 1)], members])


def test_numbers_of_all_kinds() -> None:
    def encode(f: Any) -> Any:
        return [f.add("leaf", word) for word in (2, True, np.int64(3), np.uint8(4))]

    graphs = (Graph.record(encode) for _ in range(2))
    expected = PairNetwork().words.weight[[2, 1, 3, 4] * 2]
    assert torch.equal(merge(graphs).apply(PairNetwork())[0], expected)
