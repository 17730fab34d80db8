"""Arrays on their way to the device."""

import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(values: NDArray, device: torch.device) -> Tensor:  # type: ignore[type-arg]
    """The array as a tensor on the device, for which the host does not wait.

    A GPU copies by itself from pinned memory only: with any other the host waits until the GPU has
    done all that it was given before, and a step counts that as a wait for data.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor
