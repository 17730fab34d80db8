"""What a process leaves behind, and how those of a job are found and stopped."""

import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lsgd.errors import Refused
from lsgd.job import members
from lsgd.job.members import Member

SAYS = (
    "from lsgd.job.members import last_words\n"
    "import ctypes, os, time\n"
    "with last_words(3) as leave: "
)


def job(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    tag = {"LSGD_SUPERVISED": str(folder)}
    return subprocess.Popen(command, env=os.environ | tag, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("ends", "code", "why"),
    [
        ("leave(4, 'no image')", 4, "no image"),
        ("raise KeyError('lr')", 1, "KeyError: 'lr'"),
        ("os.kill(os.getpid(), 9)", None, ""),
        ("ctypes.string_at(0)", None, "Fatal Python error: Segmentation fault"),
        ("os.abort()", None, "Fatal Python error: Aborted"),
    ],
)
def test_last_words(tmp_path: Path, ends: str, code: int | None, why: str) -> None:
    died = job(tmp_path, sys.executable, "-c", SAYS + ends)
    died.wait(timeout=20)
    assert members.members(tmp_path) == [Member(3, platform.node(), died.pid, code, why)]
    members.clear(tmp_path)
    assert members.members(tmp_path) == []


def test_who_may_return(tmp_path: Path) -> None:
    """A process whose launcher counts its lives, unless it has ended by a code or is process 0."""
    tag = {"LSGD_SUPERVISED": str(tmp_path), "LSGD_LIFE": "2"}
    words = [sys.executable, "-c", SAYS + "os.kill(os.getpid(), 9)"]
    subprocess.run(words, env=os.environ | tag, timeout=20)
    (dead,) = members.members(tmp_path)
    assert (dead.life, dead.may_return) == (2, True)
    assert replace(dead, code=1).may_return
    for other in ({"rank": 0}, {"code": 5}, {"code": 75}, {"code": 0}, {"life": None}):
        assert not replace(dead, **other).may_return
    assert members.has_returned(dead, [dead, replace(dead, life=3)])
    for other in ({"rank": 4, "life": 3}, {"life": 1}, {"life": None}):
        assert not members.has_returned(dead, [dead, replace(dead, **other)])


def test_without_a_supervisor_nothing_is_written(tmp_path: Path) -> None:
    with members.last_words(0) as leave:
        assert leave(5, "peer lost") == 5
    assert list(tmp_path.iterdir()) == []


def test_stop_finds_what_has_gone_its_own_way_and_nothing_else(tmp_path: Path) -> None:
    """A daemon whose parents are gone, a stopped process, one that refuses to go."""
    one, other = tmp_path / "run", tmp_path / "run2"
    daemon = f"setsid sleep 100 & echo $! > {tmp_path / 'daemon'}"
    job(one, "sh", "-c", daemon).wait(timeout=20)
    stopped = job(one, "sleep", "100")
    os.kill(stopped.pid, signal.SIGSTOP)
    ready = tmp_path / "ready"
    stubborn = job(one, "sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done")
    # On busy cores neither is so far at once.
    deadline = time.monotonic() + 20
    while not ready.exists() or psutil.Process(stopped.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    spared = job(other, "sleep", "100")
    try:
        assert int((tmp_path / "daemon").read_text()) in members.running(one)
        assert {stopped.pid, stubborn.pid} < set(members.stop(one))
        assert members.running(one) == []
        assert stopped.wait(timeout=20) == stubborn.wait(timeout=20) == -signal.SIGKILL
        assert members.running(other) == [spared.pid]
    finally:
        spared.kill()
        spared.wait()


def test_deaths_are_seen_in_their_order(tmp_path: Path) -> None:
    waits = "import sys; leave(int(sys.stdin.readline()), 'x')"
    launcher = job(tmp_path, "sleep", "100")
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SAYS.replace("3", str(rank)) + waits],
            env=os.environ | {"LSGD_SUPERVISED": str(tmp_path)},
            stdin=subprocess.PIPE,
        )
        for rank in range(3)
    ]
    deadline = time.monotonic() + 20
    with members.Watch(tmp_path, launcher.pid) as watch:
        while len(watch.alive) < 3:
            assert time.monotonic() < deadline
            watch.wait(0.05)
        for rank in (1, 2, 0):
            if rank == 2:
                jobs[rank].kill()
            else:
                jobs[rank].communicate(b"5\n")
            watch.wait(10)
        assert [(each.rank, each.code) for each in watch.dead] == [(1, 5), (2, None), (0, 5)]
        launcher.kill()
        watch.wait(10)
    launcher.wait()
    jobs[2].communicate()


def test_who_starts_and_crashes_between_two_looks_is_blamed(tmp_path: Path) -> None:
    """Before those that its launcher ends for it."""
    with job(tmp_path, sys.executable, "-c", SAYS + "time.sleep(100)") as other:
        deadline = time.monotonic() + 20
        while not members.members(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        crash = SAYS.replace("3", "1") + "ctypes.string_at(0)"
        ends = f"sleep 0.2; '{sys.executable}' -c '{crash}'; kill -9 {other.pid}; exec sleep 100"
        with (
            job(tmp_path, "sh", "-c", ends) as launcher,
            members.Watch(tmp_path, launcher.pid) as watch,
        ):
            watch.wait(20)
            launcher.kill()
        assert [member.rank for member in watch.dead] == [1, 3]
        assert watch.dead[0].why == "Fatal Python error: Segmentation fault"


def test_no_job_begins_beside_a_process_that_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "end", lambda tag, grace: {4321, 123})
    with pytest.raises(Refused, match="SIGKILL does not end, pid 123, 4321"):
        members.stop(tmp_path)
