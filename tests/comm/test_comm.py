import math
import os
import platform
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from helpers.threaded import ThreadComm, run_on_threads

import lsgd.comm
from lsgd.comm import (
    RERUN,
    RESTART,
    all_or_raise,
    all_reduce_,
    broadcast_from_rank0,
    choose_library,
    communicating,
    describe,
    joined,
    open_comm,
    seconds_waited,
)
from lsgd.comm.group import GroupComm
from lsgd.comm.single import SingleComm
from lsgd.comm.torch import OwnGroupComm, TorchComm, open_store
from lsgd.errors import DivergedError, PeerLostError, UsageError
from lsgd.job import device
from lsgd.job.command import run_command
from lsgd.job.device import pick_device
from lsgd.job.launcher import Launch
from lsgd.job.network import Hostname
from lsgd.recipe import CommSettings
from lsgd.supervise.singly import free_port

CPU = torch.device("cpu")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of no launcher, with threads as they are."""
    for name in list(os.environ):
        if name in (*LAUNCHERS, "CUDA_VISIBLE_DEVICES") or name.startswith(
            ("OMPI_", "PMI_", "PMIX_", "SLURM_", "HOROVOD_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def torchrun(monkeypatch: pytest.MonkeyPatch, *, rank: int, size: int, local: int) -> None:
    """Act as if torchrun had started this process among `size`, `local` of them on each machine."""
    numbers = (rank, size, rank % local, local)
    for name, number in zip(LAUNCHERS, numbers, strict=False):
        monkeypatch.setenv(name, str(number))


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Act as if this machine had so many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    found = torch.device("cuda") if count else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)


@pytest.mark.parametrize(
    ("launcher", "built", "chosen"),
    [
        ("none", True, "single"),
        ("torchrun", True, "torch"),
        ("mpirun", True, "horovod"),
        ("mpirun", False, "torch"),
    ],
)
def test_auto_means_horovod_where_it_is_built_for_the_launcher(
    monkeypatch: pytest.MonkeyPatch, launcher: str, built: bool, chosen: str
) -> None:
    monkeypatch.setattr(lsgd.comm, "_horovod_suits", lambda name, _: built and name == launcher)
    assert choose_library(Launch(launcher, 0, 4), CPU) == chosen


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_auto_does_without_horovod(monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    # As if it were missing, or built for another torch.
    monkeypatch.setitem(sys.modules, "lsgd.comm.horovod", None)
    assert choose_library(Launch(launcher, 0, 4), CPU) == "torch"
    with pytest.raises(UsageError, match=r"setup/horovod.sh.*comm=torch"):
        open_comm(CommSettings(library="horovod", timeout=1), CPU)


@pytest.mark.horovod
@pytest.mark.parametrize(("nccl", "on_gpus"), [(True, "horovod"), (False, "torch")])
def test_horovod_must_suit_the_device_too(
    monkeypatch: pytest.MonkeyPatch, nccl: bool, on_gpus: str
) -> None:
    """Without NCCL it would carry the gradients of GPUs through host memory."""
    from lsgd.comm.horovod import hvd

    monkeypatch.setattr(hvd, "nccl_built", lambda: nccl)
    launch = Launch("horovodrun", 0, 2)
    assert choose_library(launch, CPU) == "horovod"
    assert choose_library(launch, torch.device("cuda", 0)) == on_gpus


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("mpi", "pmix", "chosen"),
    [
        (True, True, ["horovod", "horovod", "torch"]),
        (False, True, ["torch", "torch", "horovod"]),
        # Without PMIx MPI aborts a process that srun has started, in twenty lines.
        (True, False, ["horovod", "torch", "torch"]),
    ],
)
def test_horovod_must_suit_the_launcher(
    monkeypatch: pytest.MonkeyPatch, mpi: bool, pmix: bool, chosen: list[str]
) -> None:
    """Built with MPI or with Gloo, not both."""
    from lsgd.comm.horovod import hvd

    if pmix:
        monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setattr(hvd, "mpi_built", lambda: mpi)
    monkeypatch.setattr(hvd, "gloo_built", lambda: not mpi)
    launchers = ("mpirun", "srun", "horovodrun")
    assert [choose_library(Launch(name, 0, 2), CPU) for name in launchers] == chosen


def test_a_program_keeps_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run has one of its own, which is gone after it."""
    torchrun(monkeypatch, rank=0, size=1, local=1)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        for _ in range(2):
            with joined(CommSettings(timeout=100), CPU) as comm:
                assert comm.gather_objects(1) == [1]
                assert isinstance(comm, OwnGroupComm)
                assert comm.group not in (None, torch.distributed.group.WORLD)
            with pytest.raises(ValueError, match="not registered"):
                torch.distributed.get_rank(comm.group)
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.horovod
def test_a_program_keeps_its_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    from lsgd.comm.horovod import hvd

    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "1")
    for name, value in {"is_initialized": True, "rank": 0, "size": 1, "mpi_enabled": False}.items():
        monkeypatch.setattr(hvd, name, lambda value=value: value)
    for name in ("init", "shutdown"):
        monkeypatch.setattr(hvd, name, lambda name=name: pytest.fail(name))
    with joined(CommSettings(library="horovod"), CPU) as comm:
        assert comm.world_size == 1


def test_a_library_that_counts_other_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each of the 4 would train alone, and all of them write the same results."""
    torchrun(monkeypatch, rank=2, size=4, local=4)
    with pytest.raises(UsageError, match=r"started 4 processes but comm=single sees 1.*comm=auto"):
        open_comm(CommSettings(library="single", timeout=1), CPU)


def test_one_process_needs_no_library() -> None:
    comm = open_comm(CommSettings(library="auto", timeout=1), CPU)
    assert (comm.rank, comm.world_size, comm.library) == (0, 1, "comm=single")
    tensor = torch.tensor([1.0, 2.0])
    all_reduce_(comm, tensor)
    assert tensor.tolist() == [1, 2]
    assert comm.broadcast_object("a") == "a"
    assert comm.gather_objects("a") == ["a"]
    assert describe(comm, CPU).startswith("1 process, CPU")


def test_one_process_over_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone under torchrun, all that a Comm does goes through gloo."""
    torchrun(monkeypatch, rank=0, size=1, local=1)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    comm = open_comm(CommSettings(library="auto", timeout=600), CPU)
    try:
        assert (comm.rank, comm.world_size, comm.library) == (0, 1, "torch.distributed (gloo)")
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int64):
            tensor = torch.tensor([1, 2], dtype=dtype)
            all_reduce_(comm, tensor)
            assert tensor.tolist() == [1, 2]
        assert comm.broadcast_object({"a": 1}) == {"a": 1}
        assert comm.gather_objects((2, "b")) == [(2, "b")]
    finally:
        comm.close()


def test_processes_that_do_not_meet_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, rank=1, size=2, local=2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        met = rf"process 1 of 2 .* 127.0.0.1:{port} within 1 s .*MASTER_ADDR"
        with pytest.raises(PeerLostError, match=met):
            open_comm(CommSettings(library="torch", timeout=600, join_timeout=1), CPU)


def test_a_shell_as_one_of_several_tasks_says_how_to_start_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the other tasks have nobody who types in them."""
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")
    for name, value in zip(names, "0202", strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_PTY_PORT", "1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    with pytest.raises(UsageError, match="start a shell under srun --pty with --ntasks 1"):
        open_comm(CommSettings(library="torch", timeout=600, join_timeout=1), CPU)


def test_the_process_that_never_came_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that did, long before a silent process would be given up."""
    port = free_port()
    first = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    first.set("joined/0", "")
    torchrun(monkeypatch, rank=1, size=3, local=3)
    monkeypatch.setenv("MASTER_PORT", str(port))
    with pytest.raises(PeerLostError, match=rf"{port} within 1 s \(no answer from process 2\)"):
        open_comm(CommSettings(library="torch", timeout=600, join_timeout=1), CPU)
    first.set("missing", "2, 7")  # as process 0 does before it ends and takes the store along
    with pytest.raises(PeerLostError, match=r"within 60 s \(no answer from process 2, 7\)"):
        open_comm(CommSettings(library="torch", timeout=600, join_timeout=60), CPU)
    del first
    torchrun(monkeypatch, rank=0, size=3, local=3)
    with pytest.raises(PeerLostError, match=r"within 1 s \(no answer from process 1, 2\)"):
        open_comm(CommSettings(library="torch", timeout=600, join_timeout=1), CPU)


@pytest.mark.horovod
def test_restarted_processes_do_not_read_what_the_earlier_ones_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun --max-restarts keeps one store, where the earlier processes may have met or not."""
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launch = Launch("torchrun", 1, 2, 1, 2, "127.0.0.1", server.port)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    for restarts in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        store = open_store(launch, timeout=10)
        assert not store.check(["missing"])
        store.set("missing", "0")


@pytest.mark.horovod
def test_what_horovod_would_abort_or_crash_at_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nobody answers, and a hostname without one."""
    for name, value in {"RANK": 1, "SIZE": 2, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", str(value))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(port))
        with pytest.raises(
            UsageError, match=rf"process 1 could not reach horovodrun at .*:{port} "
        ):
            open_comm(CommSettings(library="horovod", timeout=600, join_timeout=1), CPU)
        silent.listen()
        monkeypatch.setattr("lsgd.comm.horovod.hostname", lambda: Hostname("node7", []))
        with pytest.raises(UsageError, match=r"process 1: the hostname node7 does not resolve, "):
            open_comm(CommSettings(library="horovod", timeout=600, join_timeout=1), CPU)


def test_several_machines_must_know_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither MPICH nor Horovod says where process 0 is; torchrun, srun and Open MPI do."""
    for name, value in {"RANK": 5, "SIZE": 8, "LOCAL_RANK": 1, "LOCAL_SIZE": 4}.items():
        monkeypatch.setenv(f"HOROVOD_{name}", str(value))
    with pytest.raises(UsageError, match=r"8 processes, 4 of them on this machine.*MASTER_ADDR"):
        open_comm(CommSettings(library="torch", timeout=1), CPU)


@pytest.mark.parametrize(
    ("asked", "bound", "expected"), [(None, 8, [4]), (None, 1, [1]), ("3", 8, [])]
)
def test_processes_share_the_cores_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, bound: int, expected: list[int]
) -> None:
    """8 cores among 2 processes; mpirun may bind to fewer; OMP_NUM_THREADS is the user's word."""
    torchrun(monkeypatch, rank=1, size=2, local=2)
    threads: list[int] = []
    monkeypatch.setattr(lsgd.comm, "set_num_threads", threads.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)))
    monkeypatch.delenv("OMP_NUM_THREADS")
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    comm = ThreadComm(1, None, [None, None], {})  # type: ignore[arg-type]
    monkeypatch.setattr(lsgd.comm, "_open", lambda *_: comm)
    assert open_comm(CommSettings(library="torch", timeout=1), CPU) is comm
    assert threads == expected


def test_a_device_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, rank=7, size=8, local=4)
    gpus(monkeypatch, 0)
    assert pick_device("auto") == CPU
    with pytest.raises(UsageError, match=r"no usable GPU.*device=cpu"):
        pick_device("cuda")
    gpus(monkeypatch, 4)
    assert pick_device("cpu") == CPU
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 3)
    monkeypatch.setenv("LSGD_FIRST_GPU", "6")
    assert pick_device("auto") == torch.device("cuda", 1), "6 + 3 around 4"
    gpus(monkeypatch, 3)
    with pytest.raises(UsageError, match="4 processes on a machine with 3 GPUs"):
        pick_device("auto")


def test_a_gpu_whose_driver_is_too_old_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With torch for another CUDA no GPU is available, and 8 of them would stay idle unnoticed."""
    torchrun(monkeypatch, rank=0, size=1, local=1)
    gpus(monkeypatch, 0)
    monkeypatch.setattr(device, "DRIVER", tmp_path)
    monkeypatch.setattr(device, "DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=r"with CUDA 13\.0 finds no GPU .* update the driver"):
        pick_device("auto")
    assert pick_device("cpu") == CPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert pick_device("auto") == CPU
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "nvidia0").unlink()  # a container or a job without GPUs
    assert pick_device("auto") == CPU
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert pick_device("auto") == CPU


def test_a_process_that_is_shown_one_gpu_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may show each process a GPU of its own, whose number there is 0."""
    torchrun(monkeypatch, rank=7, size=8, local=4)
    gpus(monkeypatch, 1)
    with pytest.raises(UsageError, match="4 processes on a machine with 1 GPUs"):
        pick_device("auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert pick_device("auto") == torch.device("cuda", 0)


def test_processes_share_the_mig_slices_of_their_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several CUDA shows each process the first alone."""
    slices = ["MIG-a", "MIG-b", "MIG-c", "MIG-d"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(slices))
    torchrun(monkeypatch, rank=6, size=8, local=4)
    gpus(monkeypatch, 1)
    for _ in range(2):  # a command may ask again
        assert pick_device("auto") == torch.device("cuda", 0)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-c"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(slices[:3]))
    assert pick_device("cpu") == CPU
    with pytest.raises(UsageError, match="4 processes on a machine with 3 MIG slices"):
        pick_device("auto")


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("rank", "here_only", "says"),
    [
        (0, False, "lsgd: no"),
        (1, False, ""),
        (0, True, "lsgd: process 0: no"),
        (1, True, "lsgd: process 1: no"),
        (2, True, f"lsgd: process 2 on {platform.node()}: no"),
    ],
    ids=["all", "another", "first", "second", "of several machines"],
)
def test_a_job_complains_once(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    rank: int,
    here_only: bool,
    says: str,
) -> None:
    """Unless only this process knows of it: then that ends at once, with all said.

    Of several machines it names its own, since no reader knows the machine of a rank.
    """
    torchrun(monkeypatch, rank=rank, size=2 * (1 + rank // 2), local=2)
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    assert run_command(raising(UsageError("no", is_local=here_only))) == 2
    assert capsys.readouterr().err.strip() == says
    assert run_command(raising(DivergedError("no"))) == 3
    assert capsys.readouterr().err.strip() == ("" if rank else "lsgd: no")
    assert run_command(raising(KeyboardInterrupt())) == 130
    assert ("lsgd: interrupted" in capsys.readouterr().err) == (rank == 0)
    assert run_command(lambda: None) == 0
    assert left == [2] * here_only + [130]
    assert run_command(raising(RuntimeError("no"))) == 1
    assert "RuntimeError: no" in capsys.readouterr().err
    assert left[-1] == 1


@pytest.mark.parametrize(
    ("error", "size", "closes"),
    [
        (DivergedError("no"), 2, True),
        (UsageError("no"), 2, True),
        (UsageError("no", is_local=True), 2, False),
        (PeerLostError("no"), 2, False),
        (RuntimeError("no"), 2, False),
        (KeyboardInterrupt(), 2, False),
        (RuntimeError("no"), 1, True),
        (None, 2, True),
    ],
)
def test_only_together_processes_close_their_connection(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, size: int, closes: bool
) -> None:
    """Over NCCL one that did so alone would wait for the others for ever."""
    comm = ThreadComm(0, None, [None] * size, {})  # type: ignore[arg-type]
    closed: list[bool] = []
    monkeypatch.setattr(comm, "close", lambda: closed.append(True))
    monkeypatch.setattr(lsgd.comm, "_open", lambda *_: comm)
    torchrun(monkeypatch, rank=0, size=size, local=size)
    with suppress(Exception, KeyboardInterrupt), joined(CommSettings(), CPU):
        if error:
            raise error
    assert closed == [True] * closes


def test_who_finds_the_others_gone_says_what_it_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = ThreadComm(1, None, [None, None], {})  # type: ignore[arg-type]
    monkeypatch.setattr(comm, "close", raising(PeerLostError("gone")))
    monkeypatch.setattr(lsgd.comm, "_open", lambda *_: comm)
    torchrun(monkeypatch, rank=1, size=2, local=2)
    with pytest.raises(UsageError, match="another order") as refused, joined(CommSettings(), CPU):
        raise UsageError("saved in another order")
    assert refused.value.is_local


@pytest.mark.parametrize(
    ("waited", "begin"), [(math.inf, "no answer from b: "), (95.0, "no answer from b: "), (5.0, "")]
)
def test_the_silent_are_looked_for_only_when_all_have_waited(
    monkeypatch: pytest.MonkeyPatch, waited: float, begin: str
) -> None:
    """If a process was killed, the others notice one after the other, and none may wait then."""
    comm = ThreadComm(1, None, [None, None], {})  # type: ignore[arg-type]
    monkeypatch.setattr(comm, "call_roll", lambda: "b", raising=False)
    monkeypatch.setattr(lsgd.comm, "_open", lambda *_: comm)
    torchrun(monkeypatch, rank=1, size=2, local=2)
    error = PeerLostError("lost")
    error.waited = waited
    with (
        pytest.raises(PeerLostError, match=f"^{begin}lost$"),
        joined(CommSettings(timeout=100), CPU),
    ):
        raise error


@pytest.mark.parametrize(("kind", "fix"), [(GroupComm, RESTART), (TorchComm, RERUN)])
def test_the_fix_for_a_lost_process_is_that_of_who_runs_the_job(
    monkeypatch: pytest.MonkeyPatch, kind: type[GroupComm], fix: str
) -> None:
    """A program that has connected its own processes has no run folder to resume."""
    comm = kind.__new__(kind)
    lost = Mock(side_effect=RuntimeError("Connection closed by peer"))
    work = type("Work", (), {"wait": staticmethod(lost)})()
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: work)
    with pytest.raises(PeerLostError, match=fix) as noticed:
        comm.start_all_reduce_(torch.zeros(1), "sum")()
    assert 0 < noticed.value.waited < math.inf  # at a timeout, its message decides
    monkeypatch.setattr(torch.distributed, "all_reduce", lost)
    with pytest.raises(PeerLostError, match=fix):
        comm.start_all_reduce_(torch.zeros(1), "sum")


def test_a_thread_counts_its_own_waits_also_those_that_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server's thread waits for pushes all the time, which costs no step."""
    clock = iter([0.0, 100.0, 1.0, 3.0, 10.0, 15.0])
    monkeypatch.setattr(lsgd.comm, "perf_counter", lambda: next(clock))

    def wait() -> float:
        before = seconds_waited()
        with suppress(PeerLostError), communicating(RuntimeError):
            raise RuntimeError("Connection closed by peer")
        return seconds_waited() - before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(wait).result() == 100
    before = seconds_waited()
    with communicating(RuntimeError):
        pass
    assert wait() == 5
    assert seconds_waited() - before == 7


def test_idle_gpus_and_cores_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    line = describe(SingleComm(), torch.device("cuda", 0))
    assert "7 GPUs stay idle" in line
    assert "torchrun --nproc-per-node 8" in line
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 4})
    assert "(bound to 2 of 8 cores)" in describe(SingleComm(), CPU)


def refused_on(rank: int, comm: ThreadComm) -> Callable[[], int]:
    """Returns the own rank, but on one process is refused."""

    def action() -> int:
        if comm.rank == rank:
            raise UsageError("no room; make some")
        return comm.rank

    return action


def refusals(body: Callable[[ThreadComm], object]) -> list[str]:
    """What the body is refused with on each of three processes."""

    def process(comm: ThreadComm) -> str:
        with pytest.raises(UsageError) as refusal:
            body(comm)
        return str(refusal.value)

    return run_on_threads(3, process)


def test_what_one_process_is_refused_all_are() -> None:
    """Or the others would wait for it for ever."""
    assert run_on_threads(3, lambda comm: all_or_raise(comm, refused_on(9, comm))) == [0, 1, 2]
    first = refusals(lambda comm: all_or_raise(comm, refused_on(0, comm)))
    assert first == ["no room; make some"] * 3
    last = refusals(lambda comm: all_or_raise(comm, refused_on(2, comm)))
    assert last == ["process 2: no room; make some"] * 3


def test_what_the_first_process_finds_all_have() -> None:
    assert run_on_threads(3, lambda comm: broadcast_from_rank0(comm, refused_on(9, comm))) == [
        0,
        0,
        0,
    ]
    # The others do not even look: only one process makes the run folder.
    assert run_on_threads(3, lambda comm: broadcast_from_rank0(comm, refused_on(2, comm))) == [
        0,
        0,
        0,
    ]
    looked: list[int] = []
    run_on_threads(3, lambda comm: broadcast_from_rank0(comm, lambda: looked.append(comm.rank)))
    assert looked == [0]
    first = refusals(lambda comm: broadcast_from_rank0(comm, refused_on(0, comm)))
    assert first == ["no room; make some"] * 3


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("timeout", "own", "check", "shutdown"),
    [
        (600.0, {}, "60", "600"),
        (30.0, {}, "15", "30"),
        (0.4, {}, "1", "2"),
        (30.0, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "90"}, "90", "91"),
        (600.0, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "7"}, "3", "7"),
    ],
)
def test_horovod_looks_for_hanging_processes_in_time(
    timeout: float, own: dict[str, str], check: str, shutdown: str
) -> None:
    """It ignores a limit below the interval in which it looks, which is a minute by default."""
    from lsgd.comm.horovod import _limit_stalls

    environment = dict(own)
    _limit_stalls(environment, timeout)
    assert environment["HOROVOD_STALL_CHECK_TIME_SECONDS"] == check
    assert environment["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] == shutdown
