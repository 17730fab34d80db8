"""What only Linux has, beside the portable way for it."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.waiting import wait_until
from helpers.without_linux import ROOT, environment_without_linux

from lsgd.job import system

LSGD = ROOT / "lsgd"
OWN = {"job/system.py"}
"""The file that may call what only Linux has."""
OF_LINUX = OWN | {"job/numa.py", "job/device.py", "doctor/machine.py"}
"""Those that may read its folders besides, of hardware that they describe, and the benchmarks."""

SHORT = ["epochs=1", "schedule.milestones=[]", "schedule.warmup_epochs=0.17"]


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process in which the calls and folders of Linux alone are missing."""
    for name in ("pidfd_open", "memfd_create", "posix_fallocate", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    for name in ("PROCESSES", "LOAD", "SCHEDULE", "COUNTERS", "BOOT"):
        monkeypatch.setattr(system, name, tmp_path / "missing")
    monkeypatch.setattr(system, "LOOK", 0.01)


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a tag whose value has a blank, followed by other variables or by none."""
    tag = {"LSGD_TEST_TAG": f"/a run/{os.getpid()}"}
    with subprocess.Popen(["sleep", "100"], env=os.environ | tag) as process:
        yield process
        process.kill()


@pytest.mark.ps
def test_the_end_of_a_process_is_seen(portable: None, child: "subprocess.Popen[bytes]") -> None:
    """Also as long as nobody has waited for it."""
    ended = system.watch_process(child.pid)
    assert not select.select([ended], [], [], 0)[0]
    assert not system.has_ended(child.pid)
    child.kill()
    assert select.select([ended], [], [], 200)[0]
    assert system.has_ended(child.pid)
    os.close(ended)
    child.wait()
    assert system.has_ended(child.pid)
    with pytest.raises(ProcessLookupError):
        system.watch_process(child.pid)


@pytest.mark.ps
def test_processes_are_found_by_their_tag(
    portable: None, child: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    value = f"/a run/{os.getpid()}"
    wait_until(lambda: system.tagged_pids(("LSGD_TEST_TAG", value)) == {child.pid})
    for name, other in (("LSGD_TEST_TAG", "/a"), ("LSGD_TEST_TAG", value[2:]), ("TAG", value)):
        assert system.tagged_pids((name, other)) == set()
        assert system.has_tag(child.pid, (name, other)) is False
    child.kill()
    child.wait()
    assert system.has_tag(child.pid, ("LSGD_TEST_TAG", value)) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert system.tagged_pids(("LSGD_TEST_TAG", value)) == set()


def test_memory_and_files_have_their_size(portable: None, tmp_path: Path) -> None:
    descriptor = system.open_memory("pixels")
    os.ftruncate(descriptor, 10)
    assert os.pread(descriptor, 20, 0) == bytes(10)
    os.close(descriptor)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        system.preallocate(file.fileno(), 4096)
        file.write(b"first")
    assert (tmp_path / "file").read_bytes() == b"first" + bytes(4091)


def test_what_no_file_says_is_taken_as_usual(portable: None) -> None:
    assert system.usable_cores() == set(range(os.cpu_count() or 1))
    assert system.count_runnable_threads() is None
    assert (system.core_wait(), system.memory_kills(), system.boot_id()) == (0.0, 0, "")
    assert system.has_terminal_open(os.getpgrp()) is None
    missing = system.BOOT
    assert system.memory_limit(missing, missing) > system.peak_memory() > 2**20


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
        ("0::/", {"cpu.max": "few 100000"}, None),
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
    assert system.cpu_quota(tmp_path, tmp_path / "own") == quota
    assert system.cpu_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("own", "file"),
    [
        ("0::/job_7/step_0", "job_7/memory.max"),
        ("4:memory:/slurm/job_7\n3:cpu:/x", "memory/slurm/job_7/memory.limit_in_bytes"),
        ("4:cpu,memory:/of/the/host", "memory/memory.limit_in_bytes"),  # as a container sees it
    ],
)
def test_memory_of_the_control_group_and_its_parents(tmp_path: Path, own: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(f"{2**20}\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert system.memory_limit(tmp_path, tmp_path / "own") == 2**20
    assert system.memory_limit(tmp_path, tmp_path / "missing") > 2**20


@pytest.mark.parametrize(
    ("quota", "expected"), [(None, 8), (16.0, 8), (4.0, 4), (2.7, 2), (0.5, 1)]
)
def test_usable_cores_are_the_whole_ones_of_a_quota(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "usable_cores", lambda: set(range(8)))
    monkeypatch.setattr(system, "cpu_quota", lambda: quota)
    assert system.count_usable_cores() == expected


def test_no_other_file_asks_linux() -> None:
    """A name of Linux alone, of `os` or of a folder, would end a command elsewhere."""
    calls = {"pidfd_open", "memfd_create", "posix_fallocate", "waitid", "inotify_init"}
    calls |= {name for name in dir(os) if name.startswith(("sched_", "eventfd", "splice"))}
    call = re.compile(rf"\bos\.({'|'.join(calls)})\b|\bprctl\b")
    folder = re.compile(r'"/(proc|sys)/')
    found = []
    for path in sorted(LSGD.rglob("*.py")):
        name, text = path.relative_to(LSGD).as_posix(), path.read_text()
        if name not in OWN and not name.startswith("bench/"):
            found += [(name, each[0]) for each in call.finditer(text)]
            found += [(name, each[0]) for each in folder.finditer(text) if name not in OF_LINUX]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["train", "+recipe=digits", *SHORT, "run_dir=run"], "top-1 error"),
        (["doctor", "--limit=200"], "A run is possible here"),
    ],
    ids=["train", "doctor"],
)
def test_the_quick_start_runs_elsewhere(tmp_path: Path, command: list[str], says: str) -> None:
    if command[0] == "doctor":
        # Sums over Horovod ask the system for no more than torch's, and DALI's decoder is in C.
        for library in ("horovod", "nvidia"):
            (tmp_path / f"{library}.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, "-m", f"lsgd.{command[0]}", *command[1:]],
        cwd=tmp_path,
        env=environment_without_linux(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    assert says in done.stdout
    assert "Traceback" not in done.stdout
