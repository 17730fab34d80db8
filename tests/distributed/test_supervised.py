"""`lsgd.supervise` around real launchers: what dies or hangs, and the run ends as if undisturbed.

Deaths of any process at any moment are in test_kills.py.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.launching import AS_ROOT, LIBRARIES, command
from helpers.undisturbed import WORDS, assert_equal

from lsgd.job import members
from lsgd.run.rows import read_rows

pytestmark = pytest.mark.distributed


def supervised(library: str, folder: Path, *words: str, size: int, options=()) -> list[str]:
    """The command line of a supervised job that begins with `size` processes."""
    train = ["-m", "lsgd.train", *WORDS, *words, f"run_dir={folder}"]
    launch = command(library, "{np}", *train)
    options = ["--processes", str(size), *options]
    return [sys.executable, "-m", "lsgd.supervise", *options, "--", *launch]


@contextmanager
def started(words: list[str], folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The job, of which nothing is left behind; what it says goes into a file beside its folder."""
    with folder.with_suffix(".txt").open("ab") as output:
        job = subprocess.Popen(
            words, env=os.environ | AS_ROOT, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield job
    finally:
        job.kill()
        job.wait()
        members.stop(folder)


def said(folder: Path) -> str:
    return folder.with_suffix(".txt").read_text(errors="replace")


def steps(folder: Path) -> int:
    rows = read_rows(folder / "metrics.jsonl")
    return max((row["step"] for row in rows if row["kind"] == "train"), default=0)


def until(condition, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, said(folder)
        time.sleep(0.02)


def sizes(folder: Path) -> list[int]:
    rows = read_rows(folder / "supervise.log")
    return [row["processes"] for row in rows if row["event"] == "start"]


@pytest.mark.horovod
@pytest.mark.slow
def test_four_processes_lose_one_and_three_go_on(tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "run"
    with started(supervised("horovod-gloo", folder, size=4), folder) as job:
        until(lambda: steps(folder) >= 8, 60, folder)
        victim = members.members(folder)[2]
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: victim.pid not in [each.pid for each in members.members(folder)], 60, folder)
        assert time.monotonic() - killed < 15
        assert job.wait(timeout=120) == 0, said(folder)
    assert sizes(folder) == [4, 3]
    assert f"process 2 on {victim.host} (pid {victim.pid}) was killed" in said(folder)
    assert_equal(folder, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_killed_supervisor_leaves_nothing_and_the_same_words_go_on(
    library: str, tmp_path: Path, undisturbed: Path
) -> None:
    folder = tmp_path / "run"
    words = supervised(library, folder, size=2)
    with started(words, folder) as job:
        until(lambda: steps(folder) >= 8, 60, folder)
        job.kill()
        until(lambda: not members.running(folder), 5, folder)
    assert steps(folder) < 20
    with started(words, folder) as job:
        assert job.wait(timeout=120) == 0, said(folder)
    assert sizes(folder) == [2, 2]
    assert_equal(folder, undisturbed)


@pytest.mark.slow
def test_what_torchrun_makes_a_1_of_is_still_a_refusal(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(supervised("torch", folder, "workers=1", size=2), folder) as job:
        assert job.wait(timeout=120) == 2
    assert sizes(folder) == [2]
    assert "was refused: 2 processes cannot share workers=1" in said(folder)
    assert not (folder / "config.yaml").exists()


@pytest.mark.soak
def test_a_process_that_hangs_is_found_by_its_silence(tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "run"
    words = supervised("torch", folder, size=2, options=["--silence", "15"])
    with started(words, folder) as job:
        until(lambda: steps(folder) >= 8, 60, folder)
        os.kill(members.members(folder)[1].pid, signal.SIGSTOP)
        assert job.wait(timeout=120) == 0, said(folder)
    assert "nothing was written for 15 s, after step" in said(folder)
    assert sizes(folder) == [2, 2]
    assert_equal(folder, undisturbed)
