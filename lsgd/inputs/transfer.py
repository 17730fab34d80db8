"""Asynchronous transfers of arrays to the device."""

import torch
from numpy.typing import NDArray
from torch import Tensor

from lsgd.job.device import to_device


def arrays_to_device(values: NDArray, device: torch.device) -> Tensor:  # type: ignore[type-arg]
    """Copy a numpy array to the device as a tensor, without blocking the host."""
    return to_device(torch.from_numpy(values), device)
