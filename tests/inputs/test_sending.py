"""Arrays on their way to the device."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.accelerator import available

from lsgd.job.device import arrays_to_device, to_device_together


class Seen:
    """A tensor that writes down how it is sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def pin_memory(self) -> "Seen":
        self.calls.append(("pin_memory",))
        return self

    def to(self, device: torch.device, *, non_blocking: bool = False) -> "Seen":
        self.calls.append((device, non_blocking))
        return self


def test_the_host_does_not_wait_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """From pageable memory, or without non_blocking, it would."""
    seen, gpu = Seen(), torch.device("cuda", 0)
    monkeypatch.setattr(torch, "from_numpy", lambda values: seen)
    assert arrays_to_device(np.arange(3), gpu) is seen
    assert seen.calls == [("pin_memory",), (gpu, True)]


def test_a_gpu_that_shares_host_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read the pages of the array when they may hold the next one."""
    seen, gpu = Seen(), torch.device("mps", 0)
    monkeypatch.setattr(torch, "from_numpy", lambda values: seen)
    assert arrays_to_device(np.arange(3), gpu) is seen
    assert seen.calls == [(gpu, False)]


def test_several_arrays_are_safe_from_later_reads_too() -> None:
    with available(shares_memory=True) as device:
        first, second = to_device_together([torch.arange(3), torch.arange(2)], device)
        assert (first.tolist(), second.tolist()) == ([0, 1, 2], [0, 1])
        with pytest.raises(AssertionError, match="later"):
            torch.arange(3).to(device, non_blocking=True)


def test_on_a_cpu_the_array_is_the_tensor() -> None:
    values = np.arange(3)
    tensor = arrays_to_device(values, torch.device("cpu"))
    values[1] = 7
    assert tensor.tolist() == [0, 7, 2]
