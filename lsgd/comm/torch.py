"""Processes joined by torch.distributed: gloo between CPUs, NCCL or the like between GPUs."""

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import pairwise
from threading import Thread, Timer
from typing import Any, cast

import torch
import torch.distributed as dist

# Its functions have the current group as a default argument. Imported later, as torch.optim may do,
# they would keep it alive, and gloo's threads would sometimes end the process with an error.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from lsgd.comm import RERUN, communicating, plain_first_line
from lsgd.comm.group import GroupComm, wait_for
from lsgd.comm.pair import ProcessPair, open_pairs
from lsgd.errors import PeerLostError, UsageError
from lsgd.job.launcher import Launch

MISSING = "missing"
"""The key in the store with the ranks that have not joined: empty as soon as all have."""
SILENT = "silent"
"""The key in the store with the processes that have not timed out as the others have."""
READING = 1.0
"""The seconds that process 0, which has the store, leaves the others to read such a key."""
ROLL_CALL = 10.0
"""The seconds within which all processes time out that are not silent themselves.

They differ as the times of a step do between processes, mostly by less than a second.
"""
ANSWER = 5.0
"""The seconds within which the store answers these reports."""
WATCHDOG = 60.0
"""Seconds beyond comm.timeout after which NCCL's watchdog aborts a process, with exit code -6."""


class OwnGroupComm(GroupComm):
    """Communicator over a process group that lsgd opens, with messages from CPU to CPU over gloo.

    It is a new group of all processes of a program that has connected them itself.
    """

    fix = RERUN
    # Over gloo on GPUs too: no wait for the device, and a lost process is noticed at once.
    object_device = torch.device("cpu")

    def __init__(self, *, device: torch.device, timeout: float, join_timeout: float) -> None:
        self.backend, self.device_backend = "gloo", ""
        if device.type != "cpu":
            self.device_backend = dist.get_default_backend_for_device(device)
            self.backend = f"cpu:gloo,{device.type}:{self.device_backend}"
            # At its own timeout NCCL's watchdog aborts the process; PeerLostError must come first.
            timeout += WATCHDOG
        self.library = f"torch.distributed ({self.device_backend.upper() or 'gloo'})"
        self.timeout, self.join_timeout = timeout, join_timeout
        super().__init__(self._open_group(device))

    def _open_group(self, device: torch.device) -> dist.ProcessGroup | None:
        """Open and return the process group; None stands for the default one."""
        with communicating(RuntimeError, fix=self.fix, of_all=True):
            group = dist.new_group(backend=self.backend, timeout=timedelta(seconds=self.timeout))
        return cast(dist.ProcessGroup, group)

    def open_pairs(self, wanted: Sequence[tuple[str, int]]) -> list[ProcessPair]:
        """Open several two-process connections over gloo, each given by its name and side."""
        return open_pairs(self, wanted, timeout=self.timeout, join_timeout=self.join_timeout)

    def start_send(self, tensor: Tensor, receiver: int, tag: int) -> Callable[[], None]:
        """Start sending a CPU tensor to another process over gloo."""
        with communicating(RuntimeError):
            work = cast(dist.Work, dist.isend(tensor, receiver, self.group, tag))
        return partial(wait_for, work, self.fix)

    def start_receive(self, tensor: Tensor, sender: int, tag: int) -> Callable[[], None]:
        """Start receiving a CPU tensor from another process over gloo, in place."""
        with communicating(RuntimeError):
            work = cast(dist.Work, dist.irecv(tensor, sender, self.group, tag))
        return partial(wait_for, work, self.fix)

    def close(self) -> None:
        """Destroy the process group, since an open one may make gloo's threads abort at exit."""
        if self.device_backend:
            self.gather_objects(None)  # over gloo: NCCL would wait for a lost process for ever
        dist.destroy_process_group(self.group)


class TorchComm(OwnGroupComm):
    """Communicator that connects the processes of a job by torch.distributed."""

    def __init__(
        self, launch: Launch, *, device: torch.device, timeout: float, join_timeout: float
    ) -> None:
        self.launch, self.address = launch, _address(launch)
        super().__init__(device=device, timeout=timeout, join_timeout=join_timeout)
        self.process, self.members = launch.rank, [(rank, 0) for rank in range(self.world_size)]

    def _open_group(self, device: torch.device) -> None:
        """Join the processes at the store of process 0, and open their default group."""
        launch, own, join_timeout = self.launch, self.device_backend, self.join_timeout
        who = f"process {launch.rank} of {launch.world_size}"
        # Over gloo all devices can meet; others have a library of their own.
        kind = "cpu" if own in ("", "gloo") else device.type
        store = _meet(launch, who, self.address, join_timeout, kind)
        # Where a firewall drops packets, gloo waits for much longer than it is told to.
        waits = [f"{who}{launch.on_host}", self.address, join_timeout]
        reminder = Timer(join_timeout, _remind, waits)
        reminder.daemon = True
        reminder.start()
        try:
            dist.init_process_group(
                self.backend,
                store=store,
                rank=launch.rank,
                world_size=launch.world_size,
                timeout=timedelta(seconds=self.timeout),
                device_id=device if own == "nccl" else None,
            )
        except (dist.DistError, RuntimeError, ValueError) as error:
            if "Duplicate GPU" in str(error):
                raise UsageError(
                    f"{who} shares a GPU with another one ({error_cause(str(error))}); start at "
                    "most one process for each GPU, or unset CUDA_VISIBLE_DEVICES if it hides some",
                    is_local=True,
                ) from None
            variables = "GLOO_SOCKET_IFNAME"
            if own == "nccl":
                variables += " and NCCL_SOCKET_IFNAME"
            raise PeerLostError(
                f"{who} has met the others at {self.address}, but could not open the connections "
                f"for all-reduce ({error_cause(str(error))}); set {variables} to the network "
                "between the machines; NCCL_DEBUG=INFO prints more about GPUs"
            ) from None
        finally:
            reminder.cancel()
        self.store: Any = store

    def call_roll(self) -> str:
        """Return which processes have not timed out as this one has, such as "process 1 on node1".

        It is the address of the store if that does not answer, which may be lost with process 0, or
        be out of reach for this process; and empty if all processes have timed out.
        """
        answers: list[str] = []

        def ask() -> None:
            with suppress(dist.DistError, RuntimeError):
                answers.append(call_roll(self.store, self.process, self.members))

        # A call of a store behind a cut link does not end.
        caller = Thread(target=ask, daemon=True)
        caller.start()
        caller.join(ROLL_CALL + ANSWER)
        return answers[0] if answers else f"{self.address}, where the processes met"


def _remind(who: str, address: str, seconds: float) -> None:
    """Print why a process may still wait for the connections of its process group."""
    print(
        f"lsgd: {who} has met the others at {address}, and has waited {seconds:g} s for their "
        "connections for all-reduce; a firewall may drop them: open all ports between the "
        "machines, or set GLOO_SOCKET_IFNAME to a network without one",
        file=sys.stderr,
        flush=True,
    )


def error_cause(message: str) -> str:
    """Extract the cause from a library's error message: its "Last error", or its first line.

    >>> error_cause("NCCL error in: Utils.cpp:77\\nLast error:\\nBootstrap : no socket found\\n")
    'Bootstrap : no socket found'
    """
    lines = [line.strip().rstrip(".") for line in message.splitlines() if line.strip()]
    for line, following in pairwise(lines):
        if line == "Last error:":
            return following
    return plain_first_line(lines[0]) if lines else "no reason given"


def open_store(launch: Launch, timeout: float) -> Store:
    """Connect to the store of process 0, which need not be complete; waits up to `timeout` seconds.

    Process 0 opens the store and waits for nobody, so that it can name who is missing. Under
    torchrun the store is torchrun's. Raises UsageError without an address, and
    torch.distributed.DistError if process 0 does not answer.
    """
    is_torchruns = _is_torchruns_store()
    host, _, port = _address(launch).rpartition(":")
    store: Store = TCPStore(
        host,
        int(port),
        launch.world_size,
        is_master=launch.rank == 0 and not is_torchruns,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=not is_torchruns,
    )
    # By torchrun --max-restarts later processes find the keys of earlier ones there. Only the agent
    # of a single machine counts all restarts.
    if is_torchruns and launch.local_size == launch.world_size:
        store = PrefixStore(f"start{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    return store


def _is_torchruns_store() -> bool:
    """Return whether the store is that of torchrun, whose agent on the first machine keeps it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _decides(store: Store) -> bool:
    """Return True for the first process that asks, which then sets MISSING."""
    return store.add("decided", 1) == 1


def _meet(launch: Launch, who: str, address: str, timeout: float, device: str) -> Store:
    """Join the other processes at the store of process 0, as _join does; return the store.

    Raises PeerLostError, or UsageError for an interactive srun, if they do not all come.
    """
    try:
        return _join(launch, timeout, device)
    except (dist.DistError, RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        text = (
            f"{who} could not rendezvous with the others at {address} within "
            f"{timeout:g} s ({why}); check that all processes were started, and that "
            "MASTER_ADDR and MASTER_PORT are right if set"
        )
        if launch.launcher == "srun" and "SLURM_PTY_PORT" in os.environ:
            # Each task of srun is then a shell, and only the first receives the user's input.
            shell = "start a shell under srun --pty with --ntasks 1"
            raise UsageError(f"{text}; {shell}", is_local=True) from None
        raise PeerLostError(text) from None


def _join(launch: Launch, timeout: float, device: str) -> Store:
    """Connect to the store of process 0; wait until all processes have joined.

    Raises UsageError on all processes if they have not all chosen the same device.
    """
    limit = timedelta(seconds=timeout)
    store = open_store(launch, timeout)
    if launch.on_host:
        store.set(f"host/{launch.rank}", platform.node())
    # All wait for one key: to wait for those of all others would take N requests of N keys.
    # A process that was restarted in the meantime has been counted, and one verdict is for all.
    is_first_start = store.add(f"joined/{launch.rank}", 1) == 1
    if is_first_start:
        store.set(f"device/{launch.rank}", device)
        store.add(f"devices/{device}", 1)
    if is_first_start and store.add("joined", 1) == launch.world_size and _decides(store):
        store.set(MISSING, "")
    try:
        store.wait([MISSING], limit)
    except dist.DistStoreError:
        others = [f"joined/{rank}" for rank in range(launch.world_size)]
        missing = ", ".join(str(rank) for rank, key in enumerate(others) if not store.check([key]))
        # Those that joined late would learn no more than that process 0 has gone with the store.
        if launch.rank == 0 and not _is_torchruns_store():
            if _decides(store):
                store.set(MISSING, missing)
                time.sleep(READING)
            else:
                missing = store.get(MISSING).decode()
    else:
        missing = store.get(MISSING).decode()
    if missing:
        raise RuntimeError(f"no answer from process {missing}")
    if is_first_start and store.add(f"devices/{device}", 0) != launch.world_size:
        _check_devices(store, launch)
    return store


def _check_devices(store: Store, launch: Launch) -> None:
    """Raise UsageError for the first process that has another device than process 0."""
    devices = [store.get(f"device/{rank}").decode() for rank in range(launch.world_size)]
    other = next((rank for rank, each in enumerate(devices) if each != devices[0]), None)
    if other is None:
        return
    if launch.rank == 0 and not _is_torchruns_store():
        time.sleep(READING)  # until the others have read this too
    raise UsageError(
        f"{_with_hosts(store, [other])} computes on {devices[other]} and "
        f"{_with_hosts(store, [0])} on {devices[0]}; write device=cpu, or start the job on "
        "machines that all have GPUs which torch finds"
    )


def call_roll(store: Store, process: int, members: Sequence[tuple[int, int]]) -> str:
    """Report this process at the store, and return who of the group has not within ROLL_CALL."""
    store.set(f"timed out/{process}", "")
    try:
        store.wait([SILENT], timedelta(seconds=ROLL_CALL))
    except dist.DistStoreError:
        if store.add("roll calls", 1) == 1:  # one verdict is for all
            ranks = [rank for rank, _ in members if not store.check([f"timed out/{rank}"])]
            store.set(SILENT, _with_hosts(store, ranks))
    silent = store.get(SILENT).decode()
    if process == 0:
        time.sleep(READING)
    return silent


def _with_hosts(store: Store, ranks: Sequence[int]) -> str:
    """Return processes by host, such as "process 2, 3 on node1"; on one machine without a host."""
    by_host: dict[str, list[str]] = {}
    for rank in ranks:
        key = f"host/{rank}"
        host = f" on {store.get(key).decode()}" if store.check([key]) else ""
        by_host.setdefault(host, []).append(str(rank))
    return " and ".join(f"process {', '.join(each)}{host}" for host, each in by_host.items())


def _address(launch: Launch) -> str:
    """Return the address, host:port, of process 0; raise UsageError if the launcher gave none."""
    if launch.launcher == "none":
        raise UsageError(
            "comm=torch connects the processes of a launcher, and this process was started "
            "without one; leave it out, or launch with torchrun, srun or mpirun"
        )
    if launch.master_addr is None:
        raise UsageError(
            f"{launch.launcher} started {launch.world_size} processes, {launch.local_size} of them "
            "on this machine, and comm=torch has no rendezvous address; set MASTER_ADDR to the "
            "first machine's name and MASTER_PORT to a free port there"
        )
    return f"{launch.master_addr}:{launch.master_port}"
