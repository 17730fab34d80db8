"""Processes joined by torch.distributed: gloo between CPUs, NCCL between GPUs."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

# Its functions have the group of the moment as default argument. Imported later, as torch.optim may
# do, they would keep it alive, and gloo's threads would end the process with an error now and then.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from lsgd.comm import with_peers
from lsgd.comm.pair import Pair, open_pairs
from lsgd.errors import Refused
from lsgd.job.launcher import Launch

T = TypeVar("T")
WATCHDOG = 60.0
"""Seconds beyond comm.timeout after which NCCL's watchdog aborts a process, with exit code -6."""


class TorchComm:
    """The processes of a job over torch.distributed."""

    def __init__(
        self, launch: Launch, *, device: torch.device, timeout: float, join_timeout: float
    ) -> None:
        self.backend = "gloo"
        if device.type == "cuda":
            # At its own limit NCCL's watchdog aborts the process, and PeerLost is to come first.
            self.backend, timeout = "cpu:gloo,cuda:nccl", timeout + WATCHDOG
        address = _address(launch)
        who = f"process {launch.rank} of {launch.world_size}"
        try:
            store = _join(launch, address, join_timeout)
        except (dist.DistError, RuntimeError, ValueError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise Refused(
                f"{who} could not meet the others at "
                f"{address} within {join_timeout:g} s ({why}); check that "
                "all were started, and MASTER_ADDR and MASTER_PORT where these are set",
                here_only=True,
            ) from None
        try:
            dist.init_process_group(
                self.backend,
                store=store,
                rank=launch.rank,
                world_size=launch.world_size,
                timeout=timedelta(seconds=timeout),
                device_id=device if device.type == "cuda" else None,
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            variables = "GLOO_SOCKET_IFNAME"
            if device.type == "cuda":
                variables += " and NCCL_SOCKET_IFNAME"
            raise Refused(
                f"{who} has met the others at {address}, and no connection for sums came about "
                f"({reason(str(error))}); see that {variables} name the network between the "
                "machines, and NCCL_DEBUG=INFO says more of GPUs",
                here_only=True,
            ) from None
        self.library = "torch.distributed " + ("(NCCL)" if device.type == "cuda" else "(gloo)")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.on_gpu = device.type == "cuda"
        self.store: Any = store
        self.timeout, self.join_timeout = timeout, join_timeout

    def open_pairs(self, wanted: Sequence[tuple[str, int]]) -> list[Pair]:
        """Open connections over gloo."""
        return open_pairs(self, wanted, timeout=self.timeout, join_timeout=self.join_timeout)

    def start_sum_(self, tensor: Tensor, name: str) -> Callable[[], None]:
        """Begin to sum the tensor in place; the order of the calls matches the sums, not `name`."""
        with with_peers(RuntimeError):
            work = dist.all_reduce(tensor, async_op=True)
        return partial(_wait, work)

    def start_send(self, tensor: Tensor, receiver: int, tag: int) -> Callable[[], None]:
        """Begin to send a tensor on the CPU, over gloo."""
        with with_peers(RuntimeError):
            work = cast(dist.Work, dist.isend(tensor, receiver, tag=tag))
        return partial(_wait, work)

    def start_receive(self, tensor: Tensor, sender: int, tag: int) -> Callable[[], None]:
        """Begin to receive a tensor on the CPU, over gloo."""
        with with_peers(RuntimeError):
            work = cast(dist.Work, dist.irecv(tensor, sender, tag=tag))
        return partial(_wait, work)

    def broadcast_object(self, value: T) -> T:
        """The value that process 0 has, pickled and sent to every process."""
        values = [value]
        with with_peers(RuntimeError):
            # By gloo on GPUs too: no wait for the device, and who has gone is noticed at once.
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def gather_objects(self, value: T) -> list[T]:
        """The values of all processes, pickled and exchanged."""
        values: list[T | None] = [None] * self.world_size
        with with_peers(RuntimeError):
            dist.all_gather_object(values, value)
        return cast(list[T], values)

    def close(self) -> None:
        """Destroy the group, or gloo's threads end the process with an error now and then."""
        if self.on_gpu:
            self.gather_objects(None)  # by gloo: NCCL would wait for one that has gone, for ever
        dist.destroy_process_group()


def _wait(work: dist.Work) -> None:
    with with_peers(RuntimeError):
        work.wait()


def reason(message: str) -> str:
    """What a library gives as its last error, further down in a message, or else its first line.

    >>> reason("NCCL error in: NCCLUtils.cpp:77\\nLast error:\\nBootstrap : no socket found\\n")
    'Bootstrap : no socket found'
    """
    lines = [line.strip().rstrip(".") for line in message.splitlines() if line.strip()]
    for line, following in pairwise(lines):
        if line == "Last error:":
            return following
    return lines[0] if lines else "it gives no reason"


def _join(launch: Launch, address: str, timeout: float) -> Store:
    """The store at this address, which process 0 keeps, once all processes have reached it."""
    limit = timedelta(seconds=timeout)
    meeting = rendezvous(f"tcp://{address}", launch.rank, launch.world_size, timeout=limit)
    store: Store = next(meeting)[0]
    store.set(f"joined/{launch.rank}", "")
    others = [f"joined/{rank}" for rank in range(launch.world_size)]
    try:
        store.wait(others, limit)
    except dist.DistStoreError:
        missing = [str(rank) for rank, key in enumerate(others) if not store.check([key])]
        raise RuntimeError(f"without word from process {', '.join(missing)}") from None
    return store


def _address(launch: Launch) -> str:
    if launch.launcher == "none":
        raise Refused(
            "comm=torch joins the processes that a launcher starts, and this one was started "
            "alone; leave it out, or start it by torchrun, srun or mpirun"
        )
    if launch.master_addr is None:
        raise Refused(
            f"{launch.launcher} started {launch.world_size} processes, {launch.local_size} of them "
            "on this machine, and comm=torch does not know where they meet; set MASTER_ADDR to the "
            "first machine's name and MASTER_PORT to a free port there"
        )
    return f"{launch.master_addr}:{launch.master_port}"
