"""Real processes that are started one by one on this machine, and again when they are killed."""

import json
import os
import re
import signal
import sys
import time
from itertools import filterfalse
from pathlib import Path

import psutil
import pytest
from helpers.waiting import wait_until

from lsgd.job import members
from lsgd.job.ending import GRACE
from lsgd.job.system import has_ended

PROCESS = [sys.executable, str(Path(__file__).parent.parent / "helpers/small_lives.py")]
SINGLY = [sys.executable, "-m", "lsgd.supervise.singly"]


def job(folder: Path, *plan: str, size: int = 3) -> list[str]:
    """The words that start a small job by itself."""
    return [*SINGLY, str(size), "--", *PROCESS, f"run_dir={folder}", *plan]


def lives(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9].[0-9]"))


@pytest.mark.slow
def test_who_is_killed_is_back_and_nothing_stays(tmp_path: Path, start) -> None:
    """Neither of the job, nor of the life before."""
    program = start(*job(tmp_path, "1.0=child-killed", "2.0=raises", "until=over"))
    wait_until(lambda: program.poll() is not None or {"0.0", "1.1", "2.1"} <= {*lives(tmp_path)})
    (tmp_path / "over").touch()
    said, _ = program.communicate(timeout=900)
    assert program.returncode == 0, said
    assert lives(tmp_path) == ["0.0", "1.0", "1.1", "2.0", "2.1"]
    assert re.search("lsgd: process 1 was killed by signal 9 after [0-9]+ s; restarting it", said)
    assert "s; restarting it (restart 1)\n" in said
    assert "process 2 crashed with code 1 after" in said
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: has_ended(child))


@pytest.mark.slow
def test_ctrl_c_lets_them_save(tmp_path: Path, start) -> None:
    program = start(*job(tmp_path, "until=never", "all=saves"))
    wait_until(lambda: len(lives(tmp_path)) == 3)
    program.send_signal(signal.SIGINT)
    said, _ = program.communicate(timeout=900)
    assert program.returncode == 75, said


def test_a_killed_launcher_takes_all_along(tmp_path: Path, start) -> None:
    program = start(*job(tmp_path, "until=never"))
    wait_until(lambda: len(lives(tmp_path)) == 3)
    program.kill()
    pids = [int((tmp_path / name).read_text().split()[0]) for name in lives(tmp_path)]
    try:
        wait_until(lambda: all(map(has_ended, pids)))
    finally:
        for pid in filterfalse(has_ended, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_program_that_is_not_there(start) -> None:
    program = start(*SINGLY, "2", "--", "/no/program")
    said, _ = program.communicate(timeout=900)
    assert program.returncode == 2
    assert said.startswith("lsgd: /no/program cannot be started (No such file or directory); write")


def supervised(folder: Path, *plan: str) -> list[str]:
    (folder / "supervise.log").touch()
    return [sys.executable, "-m", "lsgd.supervise", "--restarts", "1", "--", *job(folder, *plan)]


def events(folder: Path) -> list[tuple[str, int | None]]:
    rows = [json.loads(line) for line in (folder / "supervise.log").read_text().splitlines()]
    return [(row["event"], row.get("rank")) for row in rows]


@pytest.mark.distributed
def test_a_supervisor_lets_the_others_go_on(tmp_path: Path, start) -> None:
    """A worker's death, and its return, are rows of the logbook and no end of the job."""
    program = start(*supervised(tmp_path, "until=over"))
    wait_until(lambda: len(lives(tmp_path)) == 3)
    pid, launcher = map(int, (tmp_path / "2.0").read_text().split())
    others = [int((tmp_path / name).read_text().split()[0]) for name in ("0.0", "1.0")]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: ("returned", 2) in events(tmp_path))
    # Longer than the rest of a job has whose process has died.
    time.sleep(GRACE + 0.5)
    assert all(map(psutil.pid_exists, [*others, launcher]))
    (tmp_path / "over").touch()
    said, _ = program.communicate(timeout=900)
    assert program.returncode == 0, said
    rows = [("start", None), ("lost", 2), ("returned", 2), ("end", None)]
    assert events(tmp_path) == rows
    assert "was killed, most likely by signal 9, as it printed nothing; restarting it" in said
    assert members.job_pids(tmp_path) == []


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("plan", "code", "cause"),
    [
        # The loss before it is not what ended the job.
        (
            ["1.0=killed", "1.1=5", "1.2=4"],
            4,
            "process 1 on {host} (pid {pid}) had an input that failed: so it was planned",
        ),
        # Of the others, which are ended then, one may be seen first: it dies so early.
        (["0.0=killed"], 1, " was killed"),
        (
            ["1.0=killed", "1.1=killed", "1.2=seen-raises"],
            1,
            "(pid {pid}) crashed: RuntimeError: out of",
        ),
    ],
    ids=["input failed", "process 0", "dies for ever"],
)
def test_what_ends_the_job_is_the_supervisors_to_judge(
    tmp_path: Path, plan: list[str], code: int, cause: str, start
) -> None:
    """It starts all of them again, and here gives up after that."""
    program = start(*supervised(tmp_path, *plan, "until=never"))
    said, _ = program.communicate(timeout=900)
    assert program.returncode == code, said
    assert [event for event, _ in events(tmp_path)].count("start") == 2
    last = plan[-1].partition("=")[0]
    pid = (tmp_path / last).read_text().split()[0]
    rows = [json.loads(line) for line in (tmp_path / "supervise.log").read_text().splitlines()]
    ends = [row["text"] for row in rows if row["event"] == "end"]
    assert cause.format(host=os.uname().nodename, pid=pid) in ends[-1]
    assert members.job_pids(tmp_path) == []
