"""Tests of the stand-in of an accelerator: it is as strict as CUDA and computes as the CPU does.

They also test that it counts its operations, copies and waits.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import accelerator
from helpers.accelerator import available, count_operations
from torch import Tensor, nn

CPU = torch.device("cpu")


@pytest.fixture
def device() -> Iterator[torch.device]:
    with available() as made:
        yield made


def test_torch_finds_it_in_its_context_alone() -> None:
    assert torch.accelerator.is_available() is torch.cuda.is_available()
    with available() as device:
        assert torch.accelerator.current_accelerator(check_available=True).type == device.type
        assert torch.ones(2, device=device).device == device
    assert torch.accelerator.is_available() is torch.cuda.is_available()


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pointwise": lambda x, y: x + y,
    "in place": lambda x, y: x.mul_(y),
    "product": lambda x, y: x @ y.T,
    "cat": lambda x, y: torch.cat((x, y)),
    "stack of single numbers": lambda x, y: torch.stack((x[0, 0], y[0, 0])),
    "foreach": lambda x, y: torch._foreach_add_([x], [y]),
    "index": lambda x, y: y[x[0].long()],
    "values": lambda x, y: x.index_copy_(0, torch.zeros(1, dtype=torch.int64), y[:1]),
    "numpy": lambda x, y: x.numpy(),
    "dlpack": lambda x, y: torch.from_dlpack(x),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_what_cuda_refuses_is_refused(device: torch.device, mix: Callable[..., Any]) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        mix(torch.ones(2, 3, device=device), torch.ones(2, 3))


def test_a_single_number_of_the_cpu_is_taken_where_cuda_takes_it(device: torch.device) -> None:
    x, number = torch.ones(2, device=device), torch.tensor(3.0)
    with count_operations() as counts:
        made = torch.where(x > 2, x, (x * number).add_(number).clamp(max=number))
    assert not counts.waits
    assert made.tolist() == [3.0, 3.0]


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "copy to the host": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "index": lambda x: x[x > 0],
    "index on the CPU": lambda x: x[torch.tensor([0])],
    "synchronize": lambda x: torch.get_device_module(x.device).synchronize(),
    "copy to the device": lambda x: torch.ones(2).to(x.device),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("kind", WAITS)
def test_every_wait_is_counted(device: torch.device, kind: str) -> None:
    x = torch.ones(2, device=device)
    with count_operations() as counts:
        WAITS[kind](x)
    (name,) = counts.waits.elements()
    assert name == {"unique": "_unique2"}.get(kind, kind)


def test_what_only_the_device_has_to_do_is_not_waited_for(device: torch.device) -> None:
    x = torch.ones(2, 2, device=device)
    with count_operations() as counts:
        y = (x @ x).relu_()
        y[0].fill_(5.0)
        y[1, :1].copy_(x[0, 0])
        torch._foreach_copy_([y], [x])
    assert counts.summary() == {"operators": 5, "to device": 0, "from device": 0, "waits": {}}


def test_a_copy_that_is_not_waited_for_comes_late(device: torch.device) -> None:
    """What is read too early is garbage, until an event behind the copy has happened."""
    event = torch.get_device_module(device).Event()
    seen, later = torch.zeros(2, pin_memory=True), torch.zeros(2, pin_memory=True)
    with count_operations() as counts:
        seen.copy_(torch.ones(2, device=device), non_blocking=True)
        event.record()
        later.copy_(torch.ones(2, device=device), non_blocking=True)
        assert seen.isnan().all()
        assert (event.query(), event.query()) == (False, True)
    assert counts.summary()["waits"] == {"event": 1}
    assert seen.tolist() == [1.0, 1.0]
    assert later.isnan().all()
    torch.get_device_module(device).synchronize()
    assert later.tolist() == [1.0, 1.0]


def test_pinned_memory_that_changes_under_a_copy_is_noticed(device: torch.device) -> None:
    source = torch.ones(2).pin_memory()
    with count_operations() as counts:
        source.to(device, non_blocking=True)
    assert not counts.waits
    source.zero_()
    with pytest.raises(AssertionError, match="changed before"):
        torch.get_device_module(device).synchronize()
    with count_operations() as counts:
        torch.ones(2).to(device, non_blocking=True)  # waits, since the memory is not pinned
    assert counts.waits == {"copy to the device": 1}


def test_views_share_memory_with_their_base(device: torch.device) -> None:
    flat = torch.zeros(6, device=device)
    parts = flat.as_strided((2, 2), (2, 1), 2), flat[:2], flat.view(3, 2).T
    torch._foreach_add_(parts[:2], 1.0)
    parts[2][1, 2] = 7.0
    assert flat.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 7.0]
    assert parts[0].storage_offset() == 2


def test_memory_is_counted_by_what_tensors_have(device: torch.device) -> None:
    module = torch.get_device_module(device)
    before = module.memory_allocated()
    x = torch.zeros(1024, device=device)
    view = x[:1]
    assert module.memory_allocated() == before + 4096
    module.reset_peak_memory_stats()
    del x
    assert module.memory_allocated() == before + 4096
    del view
    assert module.memory_allocated() == before
    assert module.max_memory_allocated() == before + 4096
    with available(memory=before + 4096), pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2048, device=device)


def test_a_type_that_the_device_lacks_is_refused() -> None:
    with (
        available(unsupported=frozenset({torch.float64})) as device,
        pytest.raises(TypeError, match="float64"),
    ):
        torch.ones(2, dtype=torch.float64).to(device)


def test_a_module_that_is_moved_keeps_its_parameters(device: torch.device) -> None:
    """As with CUDA, so that what was tied stays tied."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = weight = model[0].weight
    model.to(device)
    assert model[1].weight is model[0].weight is weight
    assert weight.device == device


def test_the_fused_cell_is_a_cell(device: torch.device) -> None:
    """Of which the CPU has no kernel, and sums in another order."""

    def step(device: torch.device) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.LSTMCell(3, 4).to(device)
        x = torch.ones(2, 3).to(device).requires_grad_()
        h, c = model(x, model(x))
        (h.square().sum() + c.sum()).backward()
        return [x.grad.cpu(), *(each.grad.cpu() for each in model.parameters())]

    with count_operations() as counts:
        found = step(device)
    assert counts.operators["_thnn_fused_lstm_cell"] == 2
    for one, other in zip(step(CPU), found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_copy_of_a_module_is_on_the_device_too(device: torch.device) -> None:
    model = nn.Linear(2, 2).to(device)
    twin = copy.deepcopy(model)
    twin.weight.data.zero_()
    assert twin.weight.device == device
    assert isinstance(twin.weight, nn.Parameter)
    assert model.weight.abs().sum().item() > 0


def test_nothing_is_left_to_copy() -> None:
    assert accelerator._state.begun == accelerator._state.ended
