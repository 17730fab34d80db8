"""Processes joined by Horovod: Gloo or MPI between CPUs, NCCL between GPUs.

Only its asynchronous all-reduce is used. `hvd.DistributedOptimizer` sums over accumulation passes
without dividing and refuses channels_last gradients, so the reducer is ours.
"""

import os
import socket
from collections.abc import Callable
from typing import TypeVar

# Our buckets are already large; fusing them again would let the timing choose the order of sums,
# and with it the last bits of the result.
os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from lsgd.comm import with_peers
from lsgd.errors import Refused

if not hasattr(hvd, "init"):
    raise ImportError("its compiled part does not fit this torch")

T = TypeVar("T")


def built() -> dict[str, bool]:
    """The parts with which the installed Horovod is compiled, or not."""
    parts = {"Gloo": hvd.gloo_built, "MPI": hvd.mpi_built, "NCCL": hvd.nccl_built}
    return {name: bool(is_built()) for name, is_built in parts.items()}


def suits(launcher: str, device: torch.device) -> bool:
    """Whether the installed Horovod is built for launcher (MPI, but for horovodrun) and device."""
    if launcher == "srun" and "PMIX_RANK" not in os.environ:
        # Without `srun --mpi=pmix` MPI aborts the process.
        return False
    launches = hvd.gloo_built() if launcher == "horovodrun" else hvd.mpi_built()
    return bool(launches and (device.type == "cpu" or hvd.nccl_built()))


def _reach_horovodrun(timeout: float) -> None:
    """Raise Refused if horovodrun cannot be reached; Horovod would abort and name nothing.

    Over MPI there is no such meeting place.
    """
    host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    if host is None or port is None:
        return
    try:
        socket.create_connection((host, int(port)), timeout=timeout).close()
    except OSError as error:
        raise Refused(
            f"process {os.environ.get('HOROVOD_RANK')} could not reach horovodrun at {host}:{port} "
            f"within {timeout:g} s ({error.strerror or error}); name the network that the machines "
            "share with horovodrun --network-interfaces",
            here_only=True,
        ) from None


class HorovodComm:
    """The processes of a job over Horovod."""

    def __init__(self, *, timeout: float, join_timeout: float) -> None:
        _reach_horovodrun(join_timeout)
        # Otherwise Horovod waits for a silent process for ever.
        os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(round(timeout)))
        hvd.init()
        controller = "MPI" if hvd.mpi_built() and hvd.mpi_enabled() else "Gloo"
        self.library = f"Horovod ({controller}{', NCCL' if hvd.nccl_built() else ''})"
        self.rank, self.world_size = hvd.rank(), hvd.size()

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Begin to sum the tensor in place; Horovod matches the sums of all processes by `name`."""
        with with_peers(HorovodInternalError):
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)

        def wait() -> None:
            with with_peers(HorovodInternalError):
                hvd.synchronize(handle)

        return wait

    def broadcast_object(self, value: T) -> T:
        """The value that process 0 has, pickled and sent to every process."""
        with with_peers(HorovodInternalError):
            received: T = hvd.broadcast_object(value, root_rank=0, name="object")
        return received

    def gather_objects(self, value: T) -> list[T]:
        """The values of all processes, pickled and exchanged."""
        with with_peers(HorovodInternalError):
            values: list[T] = hvd.allgather_object(value, name="objects")
        return values

    def close(self) -> None:
        """Shut Horovod down, which also ends its thread."""
        hvd.shutdown()
