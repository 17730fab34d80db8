"""Communicator over a process group of torch.distributed that is open already."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lsgd.comm import RESTART, communicating

T = TypeVar("T")


class GroupComm:
    """Communicator of the processes of an open process group, by default of all processes."""

    library = "torch.distributed"
    group: dist.ProcessGroup | None = None
    """The process group; None for the default one of the moment."""
    fix = RESTART
    """The fix in the message of a lost process."""
    object_device: torch.device | None = None
    """The device over which objects are broadcast; None for that of the group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Start an in-place all-reduce; the returned function waits for it.

        The calls of the processes are matched by their order, and not by `name`.
        """
        with communicating(RuntimeError, fix=self.fix):
            work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return partial(wait_for, work, self.fix, of_all=True)

    def broadcast_object(self, value: T) -> T:
        """Broadcast the value of process 0, pickled, and return it on every process."""
        values = [value]
        with communicating(RuntimeError, fix=self.fix, of_all=True):
            dist.broadcast_object_list(
                values, group=self.group, group_src=0, device=self.object_device
            )
        return values[0]

    def gather_objects(self, value: T) -> list[T]:
        """Gather the values of all processes, pickled; return them in rank order on all."""
        values: list[T | None] = [None] * self.world_size
        with communicating(RuntimeError, fix=self.fix, of_all=True):
            dist.all_gather_object(values, value, group=self.group)
        return cast(list[T], values)

    def close(self) -> None:
        """Leave the group open, since somebody else opened it."""


def wait_for(work: dist.Work, fix: str, *, of_all: bool = False) -> None:
    """Wait for a message or a collective call; raise PeerLostError with this fix."""
    with communicating(RuntimeError, fix=fix, of_all=of_all):
        work.wait()
