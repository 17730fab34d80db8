import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.unresolvable_host import unresolvable_host_command

from lsgd.config import load_recipe
from lsgd.doctor import (
    ABSENT,
    FAIL,
    MPI_HERE,
    PASS,
    ProbeResult,
    job_check,
    machine,
    run_probe,
    software,
    sums,
)
from lsgd.doctor.__main__ import examine
from lsgd.job.network import NetworkInterface

LO = NetworkInterface("lo", True, ("127.0.0.1", "::1"))
ETH = NetworkInterface("eth0", True, ("192.0.2.2", "fd00::2"))
DOWN = NetworkInterface("ib0", False, ())


def host(*addresses: str) -> ProbeResult:
    return ProbeResult({"host": "node7", "addresses": list(addresses)})


NETWORK = """
from lsgd.doctor import machine
from lsgd.doctor import run_probe
from lsgd.job.network import list_interfaces
item = machine.network(run_probe("network", limit=60), list_interfaces(), {})
print(item.status, item.found, item.fix, sep="|")
"""


def test_a_hostname_that_does_not_resolve() -> None:
    command = [*unresolvable_host_command(), sys.executable, "-c", NETWORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    status, found, fix = done.stdout.strip().split("|")
    assert (status, found) == (FAIL, "the hostname no-such-host.invalid does not resolve")
    assert fix.startswith("write `")
    assert fix.endswith(" no-such-host.invalid` into /etc/hosts")


@pytest.mark.parametrize(
    ("here", "answer", "environment", "status", "found"),
    [
        ([LO, ETH], host("192.0.2.2"), {}, PASS, "eth0 192.0.2.2, up, to which node7 resolves"),
        ([LO, ETH], host("fd00::2"), {}, PASS, "eth0 192.0.2.2, up, to which node7 resolves"),
        # Debian's installer writes this one.
        ([LO, ETH], host("127.0.1.1"), {}, PASS, "lo: node7 is 127.0.1.1, enough for one machine"),
        (
            [LO, ETH], host("127.0.1.1"), {"SLURM_JOB_NUM_NODES": ""}, PASS,
            "lo: node7 is 127.0.1.1, enough for one machine",
        ),
        (
            [LO, ETH], host("127.0.1.1"), {"SLURM_JOB_NUM_NODES": "2"}, FAIL,
            "lo: node7 is 127.0.1.1, enough for one machine",
        ),
        (
            [LO, ETH], host("10.9.9.9"), {}, FAIL,
            "node7 resolves to 10.9.9.9, which no interface here has",
        ),
        (
            [LO, DOWN], host("127.0.0.1"), {"GLOO_SOCKET_IFNAME": "ib0"}, FAIL,
            "GLOO_SOCKET_IFNAME=ib0, which is down",
        ),
        (
            [LO, ETH], host(), {"GLOO_SOCKET_IFNAME": "eth0"}, PASS,
            "eth0 192.0.2.2, up, by GLOO_SOCKET_IFNAME",
        ),
        (
            [LO, ETH, DOWN], host(), {"GLOO_SOCKET_IFNAME": "eth0,ib0"}, FAIL,
            "GLOO_SOCKET_IFNAME=ib0, which is down",
        ),
        (
            [LO, ETH], host(), {"GLOO_SOCKET_IFNAME": "eth0,lo"}, PASS,
            f"eth0 192.0.2.2, {LO}, up, by GLOO_SOCKET_IFNAME",
        ),
    ],
)  # fmt: skip
def test_network(
    here: list[NetworkInterface],
    answer: ProbeResult,
    environment: dict[str, str],
    status: str,
    found: str,
) -> None:
    item = machine.network(answer, here, environment)
    assert (item.status, item.found) == (status, found)
    assert item.fix or status == PASS


DEVICE: list[Path] = []


@pytest.fixture(autouse=True)
def _device(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder of devices with that of one GPU."""
    DEVICE[:] = [tmp_path_factory.mktemp("dev")]
    for name in ("nvidiactl", "nvidia0"):
        (DEVICE[0] / name).touch()


def gpu_items(driver: str | None, why: str = "", **facts: object) -> dict[str, tuple[str, str]]:
    torch = ProbeResult({"version": "2.13.0", "cuda": None, "gpus": []} | facts, why)
    items = machine.gpus(torch, driver, {}, DEVICE[0])
    return {each.name: (each.status, each.found) for each in items}


def test_a_container_without_a_gpu_of_its_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The version of the driver is that of the host, also in a job without its devices."""
    (tmp_path / "nvidiactl").touch()
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n")
    driver = machine.nvidia(5, version)
    assert driver == "580.65.06"
    torch = ProbeResult({"version": "2.13.0", "cuda": "13.0", "gpus": [], "problem": "no device"})
    items = machine.gpus(torch, driver, {}, tmp_path)
    assert {each.status for each in items} == {ABSENT}
    assert items[0].found.endswith("580.65.06, but no GPU is given to this container or job")
    assert "docker run --gpus all" in items[0].fix
    assert machine.has_device(DEVICE[0])
    refuse = Mock(side_effect=PermissionError(errno.EPERM, "of a control group"))
    monkeypatch.setattr(machine.os, "open", refuse)
    assert not machine.has_device(DEVICE[0])


def test_the_version_of_a_driver_may_be_unreadable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "run_with_limit", lambda *_, **__: (0, "580.65.06\n"))
    assert machine.nvidia(5, tmp_path) == "580.65.06"


def test_without_a_temporary_folder_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child process could answer; the fix is one, and not to install everything anew."""

    def refuse() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "_gettempdir", refuse)
    monkeypatch.setattr(tempfile, "tempdir", None)
    answer = run_probe("torch", limit=60)
    assert answer.failure_reason.startswith("no temporary folder can be written: No usable")
    assert "export TMPDIR=FOLDER" in answer.failure_reason
    with ThreadPoolExecutor(1) as pool:
        items = {each.name: each for each in examine(60, pool)}
    assert [*items] == ["Python", "temporary folder", "run folder", "disk"]
    assert (items["temporary folder"].status, items["temporary folder"].required) == (FAIL, True)
    assert "TMPDIR" in items["temporary folder"].fix
    assert items["run folder"].status == PASS


def test_gpus_are_needed_only_where_there_are_some() -> None:
    assert {status for status, _ in gpu_items(None, cuda="13.0").values()} == {ABSENT}
    found = gpu_items("580.65", version="2.13.0+cpu")
    assert found["GPU driver"] == (PASS, "580.65")
    assert found["CUDA"] == (FAIL, "torch 2.13.0+cpu is a CPU build")
    assert found["GPUs"] == (FAIL, "torch finds no usable GPU")
    old = "The NVIDIA driver on your system is too old (found version 11040)."
    assert gpu_items("470.1", cuda="13.0", problem=old)["CUDA"] == (
        FAIL, f"13.0 of torch does not fit: {old}",
    )  # fmt: skip
    facts = {"version": "2.13.0", "cuda": "13.0", "gpus": [], "problem": old}
    for environment, required in (
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": ""}, False),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, False),
    ):
        items = machine.gpus(ProbeResult(facts), "470.1", environment, DEVICE[0])
        [cuda] = [item for item in items if item.name == "CUDA"]
        assert (cuda.required, "device=cpu" in cuda.fix) == (required, required), "as a run says"
    assert gpu_items("")["GPU driver"][0] == FAIL
    two = gpu_items("580.65", cuda="13.0", nccl="2.28.9", gpus=["NVIDIA H200, 140 GiB"] * 2)
    assert two["GPUs"] == (PASS, "2 x NVIDIA H200, 140 GiB")
    assert {status for status, _ in two.values()} == {PASS}
    # A GPU that fails in its first sum, as with a build for other ones.
    unfit = gpu_items("580.65", cuda="13.0", gpus=["K80, 11 GiB"], problem="no kernel image")
    assert (unfit["CUDA"][0], unfit["GPUs"][0]) == (FAIL, FAIL)


def test_hidden_gpus_are_shown_again() -> None:
    torch = ProbeResult(
        {"version": "2.13.0", "cuda": "13.0", "gpus": [], "problem": "No CUDA GPUs"}
    )
    _, cuda, *_ = machine.gpus(torch, "580.65", {"CUDA_VISIBLE_DEVICES": ""}, DEVICE[0])
    assert "unset CUDA_VISIBLE_DEVICES" in cuda.fix


def test_more_threads_than_cores_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """lsgd takes no more itself, also with a quota; OMP_NUM_THREADS may."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for quota in (None, 4.5, 0.5):
        item = machine.cores(quota)
        assert (item.status, item.fix) == (PASS, "")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert machine.cores(None).status == machine.cores(9.0).status == PASS
    for quota, most in ((4.5, 4), (0.5, 1)):
        item = machine.cores(quota)
        assert item.status == FAIL
        assert item.fix.startswith(f"`unset OMP_NUM_THREADS`, or export at most {most}, as more")
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    item = machine.cores(None)
    assert (item.status, item.fix) == (FAIL, "`unset OMP_NUM_THREADS`, or export a number")


def test_a_run_folder_is_tried_and_not_made(tmp_path: Path) -> None:
    items = machine.run_folder(tmp_path / "a" / "runs")
    assert [(each.name, each.required) for each in items] == [("run folder", True), ("disk", False)]
    assert list(tmp_path.iterdir()) == []
    [item] = machine.run_folder(Path("/proc/runs"))
    assert (item.status, item.required) == (FAIL, True)


def test_a_job_is_checked_with_its_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full home is no obstacle to a run elsewhere."""
    monkeypatch.setenv("FAST", "/proc/fast")
    words = ["+recipe=bs256", f"run_dir={tmp_path / 'a'}", "data.stage=$FAST/me"]
    failed = job_check.failed_checks(load_recipe(words))
    assert "run folder" not in failed
    assert failed["data.stage"].startswith("/proc/fast/me cannot be written")
    monkeypatch.delenv("FAST")
    unset = job_check.failed_checks(load_recipe(words))["data.stage"]
    assert "has the variable $FAST, which has no value on " in unset
    assert "run folder" in job_check.failed_checks(load_recipe([*words[:1], "run_dir=/proc/a"]))


def test_mpi_is_tried_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a step of Slurm, mpirun would ask for a nested one, which waits for this one's cores."""
    environments = []

    def run(_: object, *, limit: float, environment: Mapping[str, str] = {}) -> tuple[int, str]:
        environments.append(environment)
        return 0, "mpirun (Open MPI) 4.1.4"

    monkeypatch.setattr(software, "run_with_limit", run)
    monkeypatch.setattr(shutil, "which", str)
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    software.mpi(ProbeResult({}), limit=1)
    assert environments[-1] == MPI_HERE
    assert MPI_HERE.items() <= sums.ENVIRONMENT.items()


def test_little_disk_and_little_shared_memory(tmp_path: Path) -> None:
    assert machine.disk(1.5).found == "1.5 GB free for runs"
    assert (machine.disk(1.5).status, machine.disk(2.5).status) == (FAIL, PASS)
    # /sys has no room at all.
    assert machine.shared_memory(Path("/sys")).status == FAIL
    assert "--shm-size" in machine.shared_memory(tmp_path / "none").fix


IB = NetworkInterface("ib0", True, ("198.51.100.2",))
DOCKER = NetworkInterface("docker0", True, ("172.17.0.1",))


@pytest.mark.parametrize(
    ("present", "named", "status", "says"),
    [
        ([LO, DOCKER, ETH, IB], "", PASS, "ib0 198.51.100.2, up, which NCCL prefers"),
        ([LO, DOCKER, ETH, DOWN], "", PASS, "eth0 192.0.2.2, up, which NCCL prefers"),
        ([LO, DOCKER], "", PASS, "docker0 172.17.0.1, up, which NCCL prefers"),
        ([DOWN], "", FAIL, "no interface is up"),
        ([LO, IB, ETH], "eth", PASS, "eth0 192.0.2.2, up, by NCCL_SOCKET_IFNAME=eth"),
        ([LO, IB, ETH], "^lo,ib", PASS, "eth0 192.0.2.2, up, by NCCL_SOCKET_IFNAME=^lo,ib"),
        ([LO, ETH, DOWN], "ib", FAIL, "NCCL_SOCKET_IFNAME=ib, but there are lo, eth0"),
    ],
)
def test_the_interface_that_nccl_takes(
    present: list[NetworkInterface], named: str, status: str, says: str
) -> None:
    item = machine.nccl_network(present, 8, {"NCCL_SOCKET_IFNAME": named})
    assert (item.status, item.found) == (status, says)
    assert bool(item.fix) == (status == FAIL)


def test_what_of_a_step_fits_the_memory() -> None:
    facts = {"where": "each GPU", "gb": 17.2, "workers": {"float32": 4, "bfloat16": 8}}
    item = machine.memory(ProbeResult(facts))
    assert item.status == PASS
    assert "17.2 GB of each GPU" in item.found
    assert item.found.endswith("workers of 32 images: 4 in float32, 8 in bfloat16")
    assert item.numbers == {"memory_gb": 17.2, "workers_float32": 4, "workers_bfloat16": 8}
    little = machine.memory(ProbeResult(facts | {"workers": {"float32": 0, "bfloat16": 1}}))
    assert little.status == FAIL
    assert "smaller worker_batch" in little.fix
    assert machine.memory(ProbeResult({}, "no torch")).status == FAIL
