"""Communicator of a job with one process, where every sum is the value itself."""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


class SingleComm:
    """Communicator of a job with a single process, in which no communication is needed."""

    library = "comm=single"
    rank = 0
    world_size = 1

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Return a wait function that does nothing, since the tensor already is the sum."""
        return lambda: None

    def broadcast_object(self, value: T) -> T:
        """Return the value that is passed, since this process is process 0."""
        return value

    def gather_objects(self, value: T) -> list[T]:
        """Return a list with the value of the only process."""
        return [value]

    def close(self) -> None:
        """Do nothing, since there is no other process to leave."""
