"""`lsgd.supervise` around real launchers: what dies or hangs, and the run ends as if undisturbed.

Deaths of any process at any moment are in test_kills.py.
"""

import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import sparse
from helpers.composed import compose_recipe
from helpers.launching import command
from helpers.reference_run import LINGERING, WORDS, assert_equal
from helpers.soak import FaultSeries
from helpers.started import Job, start_job

from lsgd.job import members
from lsgd.run.rows import read_rows
from lsgd.train import train

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]


TRAIN = ["-m", "lsgd.train"]
STOPPING = [sparse.__file__, "stop-new", "3"]
"""The program whose process 0 stops itself after step 3, in a start that resumes nothing."""


def supervised(
    library: str, folder: Path, *words: str, size: int, options=(), program=TRAIN
) -> list[str]:
    """The command line of a supervised job that begins with `size` processes."""
    launch = command(library, "{np}", *program, *WORDS, *words, f"run_dir={folder}")
    options = ["--processes", str(size), *options]
    return [sys.executable, "-m", "lsgd.supervise", *options, "--", *launch]


def first_process(job: Job) -> psutil.Process:
    """Process 0 of the job, once it has made steps."""
    job.until(lambda: job.step)
    return psutil.Process(members.process_records(job.folder)[0].pid)


def has_pending(process: psutil.Process, number: int) -> bool:
    """Whether a stopped process will receive this signal once it is resumed, or was killed since.

    On a busy machine SIGKILL may follow before anybody has looked.
    """
    try:
        status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    [pending] = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(pending, 16) >> number - 1 & 1)


def sizes(job: Job) -> list[int]:
    rows = read_rows(job.folder / "supervise.log")
    return [row["processes"] for row in rows if row["event"] == "start"]


@pytest.mark.horovod
def test_three_processes_lose_one_and_two_go_on(tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "run"
    start = supervised("horovod-gloo", folder, size=3, program=STOPPING)
    with start_job(start, folder) as job:
        with job.stopped(first_process(job), 3):
            victim = members.process_records(folder)[2]
            os.kill(victim.pid, signal.SIGKILL)
        assert job.wait() == 0, job.output_text
        assert sizes(job) == [3, 2]
        assert f"process 2 on {victim.host} (pid {victim.pid}) was killed" in job.output_text
    assert_equal(folder, undisturbed)


@pytest.mark.parametrize(
    "library", ["torch", pytest.param("horovod-mpi", marks=[pytest.mark.horovod, pytest.mark.mpi])]
)
def test_a_killed_supervisor_leaves_nothing_and_the_same_words_go_on(
    library: str, tmp_path: Path, undisturbed: Path
) -> None:
    folder = tmp_path / "run"
    words = supervised(library, folder, size=2, program=STOPPING)
    with start_job(words, folder) as job:
        with job.stopped(first := first_process(job), 3):
            job.process.kill()
            job.until(lambda: has_pending(first, signal.SIGTERM), ended=True)
        job.wait_until_no_processes()
        assert job.step < 20
        # The processes are forks now: how a launcher starts them is the same the second time.
        job.start(supervised("forked", folder, size=2))
        assert job.wait() == 0, job.output_text
        assert sizes(job) == [2, 2]
    assert_equal(folder, undisturbed)


def test_what_torchrun_makes_a_1_of_is_still_a_refusal(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with start_job(supervised("torch", folder, "workers=1", size=2), folder) as job:
        assert job.wait() == 2
        assert sizes(job) == [2]
        assert "2 processes cannot share workers=1" in job.output_text
        # torchrun adds a traceback of its own, lsgd does not.
        assert "lsgd/train.py" not in job.output_text
    assert not (folder / "config.yaml").exists()


@pytest.mark.soak
def test_sixty_four_processes_lose_one_and_the_others_go_on(
    tmp_path: Path, soak: FaultSeries
) -> None:
    folder, whole = tmp_path / "run", tmp_path / "whole"
    words = ["workers=64", "worker_batch=4", "data.train_examples=1280", "epochs=2"]
    words.append("schedule.milestones=[]")
    train(compose_recipe(*WORDS, *words, f"run_dir={whole}"))
    with start_job(supervised("torch", folder, *words, LINGERING, size=64), folder) as job:
        job.until(lambda: job.step >= 3)
        os.kill(members.process_records(folder)[40].pid, signal.SIGKILL)
        begin = time.monotonic()
        job.until(lambda: job.output_text.count("supervise: starts ") == 2)
        soak.note(f"- 63 of 64 processes started again after {time.monotonic() - begin:.0f} s")
        assert job.wait() == 0, job.output_text[-3000:]
        assert sizes(job) == [64, 63]
        job.wait_until_no_processes()
    assert_equal(folder, whole)


@pytest.mark.soak
def test_a_process_that_hangs_is_found_by_its_silence(tmp_path: Path, undisturbed: Path) -> None:
    folder = tmp_path / "run"
    words = supervised("torch", folder, LINGERING, size=2, options=["--silence", "15"])
    with start_job(words, folder) as job:
        job.until(lambda: job.step >= 3)
        os.kill(members.process_records(folder)[1].pid, signal.SIGSTOP)
        assert job.wait() == 0, job.output_text
        assert "nothing was written for 15 s, after step" in job.output_text
        assert sizes(job) == [2, 2]
    assert_equal(folder, undisturbed)
