"""Processes joined by Horovod: Gloo or MPI between CPUs, NCCL between GPUs.

Of Horovod only the asynchronous all-reduce is used. `hvd.DistributedOptimizer` sums over
accumulation passes without dividing and refuses channels_last gradients, so lsgd has its own
reducer.
"""

import math
import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import TypeVar

# The buckets are already large. Fusing them again would make the order of sums, and with it the
# last bits of the result, depend on timing. A program that has imported Horovod itself decides.
if "horovod.torch" not in sys.modules:
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from lsgd.comm import RERUN, RESTART, communicating
from lsgd.errors import UsageError
from lsgd.job.network import hostname, hostname_problem, list_interfaces

if not hasattr(hvd, "init"):
    raise ImportError("its compiled extension does not match this torch")

T = TypeVar("T")
STALL = "HOROVOD_STALL"


def built_parts() -> dict[str, bool]:
    """Return whether the installed Horovod is built with Gloo, MPI and NCCL, by name."""
    parts = {"Gloo": hvd.gloo_built, "MPI": hvd.mpi_built, "NCCL": hvd.nccl_built}
    return {name: bool(is_built()) for name, is_built in parts.items()}


def is_initialised() -> bool:
    """Return whether Horovod is initialised, as by the program that calls lsgd."""
    return bool(hvd.is_initialized())


def is_built_for(launcher: str, device: torch.device) -> bool:
    """Return whether Horovod is built for launcher and device; all but horovodrun need MPI."""
    if launcher == "srun" and "PMIX_RANK" not in os.environ:
        # Without `srun --mpi=pmix` MPI aborts the process.
        return False
    launches = hvd.gloo_built() if launcher == "horovodrun" else hvd.mpi_built()
    return bool(launches and (device.type == "cpu" or (device.type == "cuda" and hvd.nccl_built())))


def _reach_horovodrun(timeout: float) -> None:
    """Raise UsageError if horovodrun is unreachable or this machine's name does not resolve.

    Horovod would abort or crash without naming the cause. MPI needs no such connection.
    """
    host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    if host is None or port is None:
        return
    try:
        socket.create_connection((host, int(port)), timeout=timeout).close()
    except OSError as error:
        raise UsageError(
            f"process {os.environ.get('HOROVOD_RANK')} could not reach horovodrun at {host}:{port} "
            f"within {timeout:g} s ({error.strerror or error}); name the network that the machines "
            "share with horovodrun --network-interfaces",
            is_local=True,
        ) from None
    if problem := hostname_problem(hostname(), list_interfaces()):
        raise UsageError(
            f"process {os.environ.get('HOROVOD_RANK')}: {problem.finding}, which would crash "
            f"Horovod; {problem.fix}, or start with torchrun",
            is_local=True,
        )


class InitialisedHorovodComm:
    """Communicator of the processes of a job that have called Horovod's `init` themselves."""

    fix = RESTART
    """The fix in the message of a lost process."""

    def __init__(self) -> None:
        controller = "MPI" if hvd.mpi_built() and hvd.mpi_enabled() else "Gloo"
        self.library = f"Horovod ({controller}{', NCCL' if hvd.nccl_built() else ''})"
        self.rank, self.world_size = hvd.rank(), hvd.size()

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Start an in-place all-reduce; Horovod matches the sums of all processes by `name`."""
        with communicating(HorovodInternalError, fix=self.fix):
            handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)

        def wait() -> None:
            with communicating(HorovodInternalError, fix=self.fix):
                hvd.synchronize(handle)

        return wait

    def broadcast_object(self, value: T) -> T:
        """Broadcast the value of process 0, pickled, and return it on every process."""
        with communicating(HorovodInternalError, fix=self.fix):
            received: T = hvd.broadcast_object(value, root_rank=0, name="object")
        return received

    def gather_objects(self, value: T) -> list[T]:
        """Gather the values of all processes, pickled; return them in rank order on all."""
        with communicating(HorovodInternalError, fix=self.fix):
            values: list[T] = hvd.allgather_object(value, name="objects")
        return values

    def close(self) -> None:
        """Leave Horovod as it is, since the program has initialised it."""


def _limit_stalls(environment: MutableMapping[str, str], timeout: float) -> None:
    """Make Horovod end the job if a process hangs for `timeout` seconds, not wait forever.

    It looks for hanging processes from time to time, each minute by default, and ignores a limit
    that is shorter than this interval. A limit that the user has set is kept.
    """
    own = environment.get(f"{STALL}_SHUTDOWN_TIME_SECONDS", "")
    limit = max(2, int(own) if own.isdecimal() else math.ceil(timeout))
    check = environment.setdefault(f"{STALL}_CHECK_TIME_SECONDS", str(min(60, limit // 2)))
    least = int(check) + 1 if check.isdecimal() else limit
    environment.setdefault(f"{STALL}_SHUTDOWN_TIME_SECONDS", str(max(limit, least)))


class HorovodComm(InitialisedHorovodComm):
    """Communicator of the processes of a job, which it joins over Horovod."""

    fix = RERUN

    def __init__(self, *, timeout: float, join_timeout: float) -> None:
        _reach_horovodrun(join_timeout)
        _limit_stalls(os.environ, timeout)
        hvd.init()
        super().__init__()

    def close(self) -> None:
        """Shut Horovod down, which also ends its thread."""
        hvd.shutdown()
