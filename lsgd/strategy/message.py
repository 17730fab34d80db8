"""What a worker and a server send each other: some numbers, and values of the parameters."""

import torch
from torch import Tensor


class Message:
    """Numbers and values in one tensor of bytes, which travels as one message."""

    def __init__(self, numbers: int, values: int, dtype: torch.dtype) -> None:
        self.bytes = torch.zeros(8 * numbers + values * dtype.itemsize, dtype=torch.uint8)
        self.numbers: Tensor = self.bytes[: 8 * numbers].view(torch.float64)
        """Whole numbers, and those of single precision and double, all of them exactly."""
        self.values: Tensor = self.bytes[8 * numbers :].view(dtype)

    def copy(self) -> "Message":
        """A message of its own with the same content."""
        other = Message(len(self.numbers), len(self.values), self.values.dtype)
        other.bytes.copy_(self.bytes)
        return other
