"""What a process leaves behind, and how those of a job are found and stopped."""

import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from helpers.waiting import wait_until

from lsgd.errors import UsageError
from lsgd.job import members
from lsgd.job.members import ProcessRecord

SAYS = (
    "from lsgd.job.members import exit_report\n"
    "import ctypes, os, time\n"
    "with exit_report(3) as leave: "
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
    died.wait(timeout=900)
    assert members.process_records(tmp_path) == [
        ProcessRecord(3, platform.node(), died.pid, code, why)
    ]
    members.clear_records(tmp_path)
    assert members.process_records(tmp_path) == []


def test_who_may_return(tmp_path: Path) -> None:
    """A process whose launcher counts its lives, unless it has ended by a code or is process 0."""
    tag = {"LSGD_SUPERVISED": str(tmp_path), "LSGD_LIFE": "2"}
    words = [sys.executable, "-c", SAYS + "os.kill(os.getpid(), 9)"]
    subprocess.run(words, env=os.environ | tag, timeout=900)
    (dead,) = members.process_records(tmp_path)
    assert (dead.life, dead.is_restartable) == (2, True)
    assert replace(dead, code=1).is_restartable
    assert replace(dead, code=5).is_restartable
    for other in ({"rank": 0}, {"code": 4}, {"code": 75}, {"code": 0}, {"life": None}):
        assert not replace(dead, **other).is_restartable
    assert members.was_restarted(dead, [dead, replace(dead, life=3)])
    for other in ({"rank": 4, "life": 3}, {"life": 1}, {"life": None}):
        assert not members.was_restarted(dead, [dead, replace(dead, **other)])


def test_without_a_supervisor_nothing_is_written(tmp_path: Path) -> None:
    with members.exit_report(0) as leave:
        assert leave(5, "peer lost") == 5
    assert list(tmp_path.iterdir()) == []


def test_on_another_machine_without_the_folder_of_the_job_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("enable", "disable"):  # pytest has its own
        monkeypatch.setattr(members.faulthandler, name, lambda *_: None)
    monkeypatch.setenv(members.JOB_TAG, str(tmp_path / "lsgd-job-x"))
    with members.exit_report(0) as leave:
        assert leave(5, "peer lost") == 5
    assert list(tmp_path.iterdir()) == []


def test_stop_finds_what_has_gone_its_own_way_and_nothing_else(tmp_path: Path) -> None:
    """A daemon whose parents are gone, a stopped process, one that refuses to go."""
    one, other = tmp_path / "run", tmp_path / "run2"
    daemon = f"setsid sleep 100 & echo $! > {tmp_path / 'daemon'}"
    job(one, "sh", "-c", daemon).wait(timeout=900)
    stopped = job(one, "sleep", "100")
    os.kill(stopped.pid, signal.SIGSTOP)
    ready = tmp_path / "ready"
    stubborn = job(one, "sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 1; done")
    wait_until(ready.exists)
    wait_until(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    spared = job(other, "sleep", "100")
    try:
        assert int((tmp_path / "daemon").read_text()) in members.job_pids(one)
        assert {stopped.pid, stubborn.pid} < set(members.stop_job(one))
        assert members.job_pids(one) == []
        assert stopped.wait(timeout=900) == stubborn.wait(timeout=200) == -signal.SIGKILL
        assert members.job_pids(other) == [spared.pid]
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
    with members.PeerMonitor(tmp_path, launcher.pid) as watch:
        wait_until(lambda: watch.wait(0.05) or len(watch.alive) == 3)
        for rank in (1, 2, 0):
            if rank == 2:
                jobs[rank].kill()
            else:
                jobs[rank].communicate(b"5\n", timeout=900)
            watch.wait(200)
        assert [(each.rank, each.code) for each in watch.dead] == [(1, 5), (2, None), (0, 5)]
        launcher.kill()
        watch.wait(200)
    launcher.wait(timeout=900)
    jobs[2].communicate(timeout=900)


def test_who_starts_and_crashes_between_two_looks_is_blamed(tmp_path: Path) -> None:
    """Before those that its launcher ends for it."""
    with job(tmp_path, sys.executable, "-c", SAYS + "time.sleep(100)") as other:
        wait_until(lambda: members.process_records(tmp_path))
        crash = SAYS.replace("3", "1") + "ctypes.string_at(0)"
        ends = f"sleep 0.2; '{sys.executable}' -c '{crash}'; kill -9 {other.pid}; exec sleep 100"
        with (
            job(tmp_path, "sh", "-c", ends) as launcher,
            members.PeerMonitor(tmp_path, launcher.pid) as watch,
        ):
            watch.wait(200)
            launcher.kill()
        assert [member.rank for member in watch.dead] == [1, 3]
        assert watch.dead[0].why == "Fatal Python error: Segmentation fault"


def test_no_job_begins_beside_a_process_that_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "end_tagged", lambda tag, grace: {4321, 123})
    with pytest.raises(UsageError, match="SIGKILL does not end, pid 123, 4321"):
        members.stop_job(tmp_path)


GOOD = '{"rank": 3, "host": "h", "pid": 1'


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[1]", b"\xff\xfe", b"[" * 9999, b'{"rank": 0}',
        b'{"rank": "a", "host": "h", "pid": 1}', b'{"rank": 0, "host": 1, "pid": 1}',
        b'{"rank": 0, "host": "h", "pid": 0}', b'{"rank": 0, "host": "h", "pid": -1}',
        b'{"rank": 0, "host": "h", "pid": 1.5}', b'{"rank": 0, "host": "h", "pid": 99999999999}',
        b'{"rank": 0, "host": "h", "pid": ' + b"9" * 5000 + b"}",
        GOOD.encode() + b', "code": "6"}', GOOD.encode() + b', "life": [1]}',
        GOOD.encode() + b', "why": 3}',
    ],
    ids=lambda content: content[:40].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_process_s_file_is_left_out(content: bytes, tmp_path: Path) -> None:
    """It ends neither who reads it nor a job; nor do a folder and a pipe of such a name."""
    members.clear_records(tmp_path)
    own = tmp_path / members.FOLDER
    (own / "a.jsonl").write_bytes(content)
    (own / "b.jsonl").mkdir()
    os.mkfifo(own / "c.jsonl")
    (own / "d.jsonl").write_text(GOOD + ', "what else": 1}\n{"code": 5, "why": "x", "y": {}}\n')
    assert members.process_records(tmp_path) == [ProcessRecord(3, "h", 1, 5, "x")]
    members.clear_records(tmp_path)
    assert [path.name for path in own.iterdir()] == ["b.jsonl"]


def test_clearing_follows_no_link(tmp_path: Path) -> None:
    """A run folder may be somebody else's, with a link to files that are the user's own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/a.jsonl").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / members.FOLDER).symlink_to(tmp_path / "own")
    members.clear_records(tmp_path / "run")
    assert (tmp_path / "own/a.jsonl").exists()
    (tmp_path / "file" / "run").mkdir(parents=True)
    (tmp_path / "file/run" / members.FOLDER).touch()
    with pytest.raises(UsageError, match=r"supervised cannot be written .*; remove it"):
        members.clear_records(tmp_path / "file/run")


def test_no_process_of_something_else_is_watched(tmp_path: Path) -> None:
    """Whoever names it in a file of the run folder: it gets no signal, and its end says nothing."""
    members.clear_records(tmp_path)
    with job(tmp_path / "other", "sleep", "100") as stranger:
        wait_until(lambda: members.job_pids(tmp_path / "other"))
        start = {"rank": 1, "host": platform.node(), "pid": stranger.pid}
        (tmp_path / members.FOLDER / "1.jsonl").write_text(json.dumps(start) + "\n")
        with members.PeerMonitor(tmp_path, os.getpid()) as watch:
            watch.wait(0)
            stranger.kill()
            stranger.wait()
            watch.wait(0)
        assert (watch.alive, watch.dead) == ({}, [])
    assert not members.is_job_process(stranger.pid, tmp_path)


def test_last_words_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have had their space from the start; without it the process ends as it does."""
    for name in ("enable", "disable"):  # pytest has its own
        monkeypatch.setattr(members.faulthandler, name, lambda *_: None)
    monkeypatch.setenv("LSGD_SUPERVISED", str(tmp_path))
    with members.exit_report(0) as leave:
        [file] = (tmp_path / members.FOLDER).iterdir()
        assert file.stat().st_blocks * 512 >= members.WORDS
        assert leave(6, "the disk is full") == 6
    assert file.stat().st_size == members.WORDS
    assert [(each.code, each.why) for each in members.process_records(tmp_path)] == [
        (6, "the disk is full")
    ]
    (tmp_path / "file").touch()
    monkeypatch.setenv("LSGD_SUPERVISED", str(tmp_path / "file"))
    with members.exit_report(0) as leave:
        assert leave(6, "the disk is full") == 6


def test_a_process_of_another_machine_does_not_die_with_a_pid(tmp_path: Path) -> None:
    """In containers on several machines the same small pids are usual."""
    launcher = job(tmp_path, "sleep", "100")
    died = job(tmp_path, sys.executable, "-c", SAYS + "import time; time.sleep(100)")
    with members.PeerMonitor(tmp_path, launcher.pid) as watch:
        wait_until(lambda: watch.wait(0.05) or len(watch.alive) == 1)
        record = {"rank": 5, "host": "elsewhere", "pid": died.pid}
        (tmp_path / members.FOLDER / "elsewhere.jsonl").write_text(json.dumps(record) + "\n")
        died.kill()
        wait_until(lambda: watch.wait(0.05) or watch.dead)
        assert [member.host for member in watch.dead] == [platform.node()]
    launcher.kill()
    launcher.wait()
    died.wait()
