"""What torch.distributed leaves behind."""

import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import lsgd.comm.torch
from lsgd.comm.torch import TorchComm, call_roll
from lsgd.errors import PeerLostError, UsageError
from lsgd.job.launcher import Launch
from lsgd.supervise.singly import free_port

PROGRAM = """
import os
import torch
from lsgd.comm import joined, all_reduce_
from lsgd.recipe import CommSettings
with joined(CommSettings(), torch.device("cpu")) as comm:
    all_reduce_(comm, torch.ones(3))
with open(f"{__file__}.threads-{comm.rank}", "w") as file:
    for thread in os.listdir("/proc/self/task"):
        file.write(open(f"/proc/self/task/{thread}/comm").read())
"""

MESSAGE = """\
NCCL error in: NCCLUtils.cpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details)
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Bootstrap : no socket interface found
"""


@pytest.mark.parametrize("second", ["cpu", "cuda"])
def test_processes_with_other_devices_are_refused_when_they_meet(second: str) -> None:
    """Each chooses its own by device=auto, and they could not connect."""
    port = free_port()

    stores = []  # process 0 keeps the store until both have left

    def meet(rank: int, device: str) -> str:
        launch = Launch("mpirun", rank, 2, 0, 1, "127.0.0.1", port)
        try:
            stores.append(lsgd.comm.torch._join(launch, 60, device))
        except UsageError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        said = [
            each.result() for each in [pool.submit(meet, 0, "cuda"), pool.submit(meet, 1, second)]
        ]
    host = platform.node()
    refusal = (
        f"process 1 on {host} computes on cpu and process 0 on {host} on cuda; write device=cpu"
    )
    assert [text.partition(", or")[0] for text in said] == [refusal if second == "cpu" else ""] * 2


@pytest.mark.parametrize("fails", ["meeting", "connecting"])
def test_who_has_met_the_others_is_not_sent_to_look_for_them(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """NCCL's own reason stands below its first line; it has nothing to do with MASTER_ADDR."""
    fail = Mock(side_effect=RuntimeError(MESSAGE))
    monkeypatch.setattr(lsgd.comm.torch, "_join", fail if fails == "meeting" else lambda *_: None)
    monkeypatch.setattr("torch.distributed.init_process_group", fail)
    launch = Launch("torchrun", rank=1, world_size=2, master_addr="node0")
    with pytest.raises(PeerLostError) as refused:
        TorchComm(launch, device=torch.device("cuda"), timeout=1, join_timeout=1)
    connecting = fails == "connecting"
    assert ("(Bootstrap : no socket interface found)" in str(refused.value)) == connecting
    assert ("NCCL_SOCKET_IFNAME" in str(refused.value)) == connecting
    assert ("MASTER_ADDR" in str(refused.value)) != connecting


def test_processes_that_share_a_gpu_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to look for a network between machines."""
    fail = Mock(
        side_effect=RuntimeError(
            "ncclInvalidUsage\nDuplicate GPU detected : rank 1 and rank 0 both on 50000"
        )
    )
    monkeypatch.setattr(lsgd.comm.torch, "_join", lambda *_: None)
    monkeypatch.setattr("torch.distributed.init_process_group", fail)
    launch = Launch("torchrun", rank=1, world_size=2, master_addr="node0")
    with pytest.raises(UsageError, match="start at most one process for each GPU") as refused:
        TorchComm(launch, device=torch.device("cuda"), timeout=1, join_timeout=1)
    assert "IFNAME" not in str(refused.value)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, seen: list[object], *, timeout: float) -> TorchComm:
    """What process 1 of 2 has on a GPU, with torch.distributed played by functions that note their
    calls in `seen`."""
    monkeypatch.setattr(lsgd.comm.torch, "_join", lambda *_: None)
    played = {
        "init_process_group": lambda backend, timeout, **_: seen.append((backend, timeout.seconds)),
        "get_rank": lambda _: 1,
        "get_world_size": lambda _: 2,
        "broadcast_object_list": lambda values, device, **_: seen.append(device.type),
        "all_gather_object": lambda values, value, group: seen.append("meet"),
        "destroy_process_group": lambda _: seen.append("destroy"),
    }
    for name, function in played.items():
        monkeypatch.setattr(f"torch.distributed.{name}", function)
    launch = Launch("torchrun", rank=1, world_size=2, master_addr="node0")
    return TorchComm(launch, device=torch.device("cuda"), timeout=timeout, join_timeout=1)


def test_nccl_is_waited_for_with_a_limit_wherever_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its watchdog comes a minute after the guard; objects and the last meeting go by gloo."""
    seen: list[object] = []
    comm = on_a_gpu(monkeypatch, seen, timeout=100)
    comm.broadcast_object("a")
    comm.close()
    assert seen == [("cpu:gloo,cuda:nccl", 160), "cpu", "meet", "destroy"]


def test_a_group_is_not_destroyed_once_a_process_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    comm = on_a_gpu(monkeypatch, seen, timeout=100)
    gone = Mock(side_effect=RuntimeError("Connection closed by peer"))
    monkeypatch.setattr("torch.distributed.all_gather_object", gone)
    with pytest.raises(PeerLostError):
        comm.close()
    assert "destroy" not in seen


def test_all_read_the_same_silent_processes_with_their_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that times out later than the first, and after a silent process has reported."""
    monkeypatch.setattr(lsgd.comm.torch, "ROLL_CALL", 0.01)
    monkeypatch.setattr(lsgd.comm.torch, "READING", 0.0)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for key, value in {"host/1": "a", "host/2": "a", "host/4": "b", "timed out/0": ""}.items():
        store.set(key, value)
    members = [(rank, 0) for rank in range(6) if rank != 5]
    named = "process 1, 2 on a and process 4 on b"
    assert [call_roll(store, rank, members) for rank in (3, 0, 1)] == [named] * 3


def test_a_process_that_cannot_reach_the_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own link may be cut, and a call of the store then never ends."""
    monkeypatch.setattr(lsgd.comm.torch, "ROLL_CALL", 0.01)
    monkeypatch.setattr(lsgd.comm.torch, "ANSWER", 0.01)
    comm = on_a_gpu(monkeypatch, [], timeout=100)
    cut = Event()

    def unanswered(*_: object) -> None:
        cut.wait()
        raise RuntimeError("Broken pipe")

    comm.store = SimpleNamespace(set=unanswered)
    assert comm.call_roll() == "node0:29500, where the processes met"
    cut.set()


@pytest.mark.distributed
def test_no_thread_of_gloo_outlives_the_job(tmp_path: Path) -> None:
    """One that frees a tensor while Python shuts down aborts the process, now and then."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = subprocess.run(
        [*launch, "--nproc-per-node", "2", program], capture_output=True, text=True, timeout=1200
    )
    assert ended.returncode == 0, ended.stderr
    threads = [file.read_text() for file in tmp_path.glob("*.threads-*")]
    assert len(threads) == 2
    assert all("python" in each and "gloo" not in each for each in threads)
