"""Message between a worker and a server: header numbers, and values of the parameters."""

import torch
from torch import Tensor


class Message:
    """Message between a worker and a server: header and parameter values in one byte tensor."""

    def __init__(self, numbers: int, values: int, dtype: torch.dtype) -> None:
        self.bytes = torch.zeros(8 * numbers + values * dtype.itemsize, dtype=torch.uint8)
        self.numbers: Tensor = self.bytes[: 8 * numbers].view(torch.float64)
        """Header in float64, which represents integers and float32 values exactly."""
        self.values: Tensor = self.bytes[8 * numbers :].view(dtype)

    def copy(self) -> "Message":
        """Return a copy of the message with its own memory."""
        other = Message(len(self.numbers), len(self.values), self.values.dtype)
        other.bytes.copy_(self.bytes)
        return other
