"""Processes joined by torch.distributed: gloo between CPUs, NCCL between GPUs."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from lsgd.comm import with_peers
from lsgd.errors import Refused
from lsgd.launcher import Launch

T = TypeVar("T")


class TorchComm:
    """See Comm."""

    def __init__(self, launch: Launch, *, device: torch.device, timeout: float) -> None:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        address = _address(launch)
        try:
            dist.init_process_group(
                backend,
                init_method=f"tcp://{address}",
                rank=launch.rank,
                world_size=launch.world_size,
                timeout=timedelta(seconds=timeout),
                device_id=device if device.type == "cuda" else None,
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            raise Refused(
                f"process {launch.rank} of {launch.world_size} could not meet the others at "
                f"{address} ({str(error).splitlines()[0]}); check MASTER_ADDR and MASTER_PORT",
                here_only=True,
            ) from None
        self.library = "torch.distributed " + ("(NCCL)" if device.type == "cuda" else "(gloo)")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.device = device

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """See Comm; torch.distributed goes by the order of the calls and needs no name."""
        with with_peers(RuntimeError):
            work = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with with_peers(RuntimeError):
                work.wait()

        return wait

    def broadcast_object(self, value: T) -> T:
        """See Comm."""
        values = [value]
        with with_peers(RuntimeError):
            dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    def gather_objects(self, value: T) -> list[T]:
        """See Comm."""
        values: list[T | None] = [None] * self.world_size
        with with_peers(RuntimeError):
            dist.all_gather_object(values, value)
        return cast(list[T], values)

    def close(self) -> None:
        """See Comm; without it gloo's threads end the process with an error now and then."""
        dist.destroy_process_group()


def _address(launch: Launch) -> str:
    """Where the processes meet: as the environment says, else on this machine if all are here."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "29500")
    if host is None and launch.local_size != launch.world_size:
        raise Refused(
            f"{launch.launcher} started {launch.world_size} processes, {launch.local_size} of them "
            "on this machine, and comm=torch does not know where they meet; set MASTER_ADDR to the "
            "first machine's name and MASTER_PORT to a free port there"
        )
    return f"{host or '127.0.0.1'}:{port}"
