"""What TorchFold 0.1.0 (Polosukhin 2017) runs and what it got wrong, folded and call by call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lsgd.fold import Fold, Unfold

Make = Callable[[nn.Module], Any]


@pytest.fixture(params=["Fold", "Unfold"])
def make(request: pytest.FixtureRequest) -> Make:
    """Either of the two, for a module."""
    return Unfold if request.param == "Unfold" else lambda module: Fold(cuda=False)


def test_sequences_of_other_lengths(make: Make) -> None:
    """The first call of each takes two tensors and the others a node, and all meet in a launch."""
    module = nn.Module()
    module.cell = nn.GRUCell(5, 4)
    launches = []

    def encode(row: Tensor, state: Tensor) -> Tensor:
        launches.append(len(row))
        return module.cell(row, state)

    module.encode = encode
    begin = [torch.rand(1, 4) for _ in range(3)]
    rows = [torch.rand(length, 1, 5) for length in (2, 3, 5)]
    f = make(module)
    states: list[Any] = [*begin]
    expected = [*begin]
    for k, sequence in enumerate(rows):
        for row in sequence:
            states[k] = f.add("encode", row, states[k])
            expected[k] = module.cell(row, expected[k])
    (last,) = f.apply(module, [states])
    assert launches == [3, 3, 2, 1, 1] or isinstance(f, Unfold)
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

    def shifted(self, table: Tensor, row: Tensor) -> Tensor:
        return row + table.sum()

    def tables(self) -> tuple[Tensor, Tensor]:
        table = torch.tensor([[10.0], [20.0]])
        return table, -table


@pytest.fixture
def f(make: Make) -> Any:
    return make(Numbers())


def numbers(f: Any, nodes: list[Any]) -> list[float]:
    return f.apply(f._module if isinstance(f, Unfold) else Numbers(), [nodes])[0].flatten().tolist()


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3], [0, 1], [3]])
def test_a_part_of_one_value_for_all(f: Any, chosen: list[int]) -> None:
    """As the first argument, whose rows it took for the number of calls; and it forgot nobatch()
    where split() came after it."""
    table, _ = f.add("tables").nobatch().split(2)
    made = [f.add("shifted", table, f.add("value", number)) for number in range(4)]
    assert numbers(f, [made[number] for number in chosen]) == [30 + number for number in chosen]


def test_a_node_in_one_call_and_a_number_in_the_other(f: Any) -> None:
    """It could make them together only as one call, and refused it."""
    row = f.add("value", 3)
    assert numbers(f, [f.add("scaled", row, 2), f.add("scaled", row, row)]) == [6, 9]


def test_tensors_of_other_shapes_and_types_are_other_calls(f: Any) -> None:
    """It could not put the first two together, and let floats round the whole number."""
    large = torch.tensor([[2**53 + 1]])
    given = [torch.ones(1, 1), torch.ones(1, 3), large]
    module = f._module if isinstance(f, Unfold) else Numbers()
    found = f.apply(module, [[f.add("total", tensor)] for tensor in given])
    assert [each.shape for each in found] == [(1, 1), (1, 3), (1, 1)]
    assert found[2].item() == 2**53 + 1
