import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.capabilities import missing

from lsgd.doctor import machine
from lsgd.doctor.child import Answer
from lsgd.doctor.item import ABSENT, FAIL, PASS, Item
from lsgd.doctor.machine import Interface

LO = Interface("lo", True, ("127.0.0.1", "::1"))
ETH = Interface("eth0", True, ("192.0.2.2", "fd00::2"))
DOWN = Interface("ib0", False, ())


def host(*addresses: str) -> Answer:
    return Answer({"host": "node7", "addresses": list(addresses)})


NETWORK = """
from lsgd.doctor import machine
from lsgd.doctor.child import ask
item = machine.network(ask("network", limit=60), machine.interfaces(), {})
print(item.status, item.found, item.fix, sep="|")
"""


def test_a_hostname_that_does_not_resolve() -> None:
    """In a UTS namespace of its own, so the machine keeps its name."""
    unshare = ["unshare", "--uts"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        missing("uts", "a process may not have a hostname of its own", "tests as root")
    rename = [*unshare, "sh", "-c", 'hostname no-such-host.invalid; exec "$0" "$@"']
    done = subprocess.run(
        [*rename, sys.executable, "-c", NETWORK], capture_output=True, text=True, timeout=120
    )
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
        ([LO], host("127.0.0.1"), {}, PASS, "lo: node7 is 127.0.0.1, enough for one machine"),
        # Debian's installer writes this one.
        ([LO, ETH], host("127.0.1.1"), {}, PASS, "lo: node7 is 127.0.1.1, enough for one machine"),
        (
            [LO, ETH], host("127.0.1.1"), {"SLURM_JOB_NUM_NODES": "2"}, FAIL,
            "lo: node7 is 127.0.1.1, enough for one machine",
        ),
        (
            [LO, ETH], host("10.9.9.9"), {}, FAIL,
            "node7 resolves to 10.9.9.9, which no interface here has",
        ),
        (
            [LO, ETH], host("127.0.0.1"), {"GLOO_SOCKET_IFNAME": "ib7"}, FAIL,
            "GLOO_SOCKET_IFNAME=ib7, but there are lo, eth0",
        ),
        (
            [LO, DOWN], host("127.0.0.1"), {"GLOO_SOCKET_IFNAME": "ib0"}, FAIL,
            "GLOO_SOCKET_IFNAME=ib0, which is down",
        ),
        (
            [LO, ETH], host(), {"GLOO_SOCKET_IFNAME": "eth0"}, PASS,
            "eth0 192.0.2.2, up, by GLOO_SOCKET_IFNAME",
        ),
    ],
)  # fmt: skip
def test_network(
    here: list[Interface], answer: Answer, environment: dict[str, str], status: str, found: str
) -> None:
    item = machine.network(answer, here, environment)
    assert (item.status, item.found) == (status, found)
    assert item.fix or status == PASS


def test_interfaces_of_this_machine() -> None:
    [lo] = [each for each in machine.interfaces() if each.name == "lo"]
    assert (lo.up, lo.loopback, lo.addresses[0]) == (True, True, "127.0.0.1")


def gpu_items(driver: str | None, why: str = "", **facts: object) -> dict[str, tuple[str, str]]:
    torch = Answer({"version": "2.13.0", "cuda": None, "gpus": []} | facts, why)
    return {each.name: (each.status, each.found) for each in machine.gpus(torch, driver, {})}


def test_gpus_are_needed_only_where_there_are_some() -> None:
    assert {status for status, _ in gpu_items(None, cuda="13.0").values()} == {ABSENT}
    found = gpu_items("580.65", version="2.13.0+cpu")
    assert found["GPU driver"] == (PASS, "580.65")
    assert found["CUDA"] == (FAIL, "torch 2.13.0+cpu is a CPU build")
    assert found["GPUs"] == (FAIL, "torch can use none")
    old = "The NVIDIA driver on your system is too old (found version 11040)."
    assert gpu_items("470.1", cuda="13.0", problem=old)["CUDA"] == (
        FAIL, f"13.0 of torch does not fit: {old}",
    )  # fmt: skip
    assert gpu_items("")["GPU driver"][0] == FAIL
    two = gpu_items("580.65", cuda="13.0", nccl="2.28.9", gpus=["NVIDIA H200, 140 GiB"] * 2)
    assert two["GPUs"] == (PASS, "2 x NVIDIA H200, 140 GiB")
    assert {status for status, _ in two.values()} == {PASS}
    # A GPU that fails in its first sum, as with a build for other ones.
    unfit = gpu_items("580.65", cuda="13.0", gpus=["K80, 11 GiB"], problem="no kernel image")
    assert (unfit["CUDA"][0], unfit["GPUs"][0]) == (FAIL, FAIL)


def test_hidden_gpus_are_shown_again() -> None:
    torch = Answer({"version": "2.13.0", "cuda": "13.0", "gpus": [], "problem": "No CUDA GPUs"})
    _, cuda, *_ = machine.gpus(torch, "580.65", {"CUDA_VISIBLE_DEVICES": ""})
    assert "unset CUDA_VISIBLE_DEVICES" in cuda.fix


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/a/b", {"cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2.0),
        ("0::/", {"cpu.max": "max 100000"}, None),
        (
            "4:memory:/x\n3:cpu,cpuacct:/docker/1",
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("3:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "1"}, None),
    ],
)
def test_quota_of_the_control_group(
    tmp_path: Path, own: str, files: dict[str, str], quota: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert machine.cpu_quota(tmp_path, tmp_path / "own") == quota


def test_more_threads_than_the_quota_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    item = machine.cores(cores / 2)
    assert item.status == FAIL
    assert item.fix.startswith(f"export OMP_NUM_THREADS={max(1, cores // 2)},")
    assert machine.cores(None).status == PASS
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine.cores(cores / 2).status == PASS


def test_a_run_folder_is_tried_and_not_made(tmp_path: Path) -> None:
    items = machine.run_folder(tmp_path / "a" / "runs")
    assert [(each.name, each.required) for each in items] == [("run folder", True), ("disk", False)]
    assert list(tmp_path.iterdir()) == []
    [item] = machine.run_folder(Path("/proc/runs"))
    assert (item.status, item.required) == (FAIL, True)


def test_little_disk_and_little_shared_memory(tmp_path: Path) -> None:
    assert machine.disk(1.5).found == "1.5 GB free for runs"
    assert (machine.disk(1.5).status, machine.disk(2.5).status) == (FAIL, PASS)
    # /sys has no room at all.
    assert machine.shared_memory(Path("/sys")).status == FAIL
    assert "--shm-size" in machine.shared_memory(tmp_path / "none").fix


def test_every_failure_has_a_fix() -> None:
    """Of those that are made here without a real fault."""
    items: list[Item] = [machine.disk(0), machine.shared_memory(Path("/sys"))]
    items += machine.gpus(Answer({}, "it crashed"), "", {})
    assert all(item.fix for item in items if item.status == FAIL)


IB = Interface("ib0", True, ("198.51.100.2",))
DOCKER = Interface("docker0", True, ("172.17.0.1",))


@pytest.mark.parametrize(
    ("present", "named", "status", "says"),
    [
        ([LO, DOCKER, ETH, IB], "", PASS, "ib0 198.51.100.2, up, which NCCL prefers"),
        ([LO, DOCKER, ETH, DOWN], "", PASS, "eth0 192.0.2.2, up, which NCCL prefers"),
        ([LO, DOCKER], "", PASS, "docker0 172.17.0.1, up, which NCCL prefers"),
        ([LO], "", PASS, "lo 127.0.0.1, up, which NCCL prefers"),
        ([DOWN], "", FAIL, "no interface is up"),
        ([LO, IB, ETH], "eth", PASS, "eth0 192.0.2.2, up, by NCCL_SOCKET_IFNAME=eth"),
        ([LO, IB, ETH], "=eth", FAIL, "NCCL_SOCKET_IFNAME==eth, but there are lo, ib0, eth0"),
        ([LO, IB, ETH], "^lo,ib", PASS, "eth0 192.0.2.2, up, by NCCL_SOCKET_IFNAME=^lo,ib"),
        ([LO, ETH, DOWN], "ib", FAIL, "NCCL_SOCKET_IFNAME=ib, but there are lo, eth0"),
    ],
)
def test_the_interface_that_nccl_takes(
    present: list[Interface], named: str, status: str, says: str
) -> None:
    item = machine.nccl_network(present, 8, {"NCCL_SOCKET_IFNAME": named})
    assert (item.status, item.found) == (status, says)
    assert bool(item.fix) == (status == FAIL)


def test_without_a_gpu_nccl_takes_none() -> None:
    assert machine.nccl_network([LO, ETH], 0, {}).status == ABSENT
