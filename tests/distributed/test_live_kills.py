"""Workers of an asynchronous run are killed again and again; servers, and the run made again.

`make soak` kills thirty workers, and `make test-all` three. What comes out is the run that its
order says, whoever was lost.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from helpers.soak import Soak
from helpers.undisturbed import rows, saved
from helpers.victims import ranks

from lsgd.job import members
from lsgd.run.rows import read_rows

pytestmark = pytest.mark.distributed

WORKERS = 3
# 1500 batches in an epoch, so that who comes back is mostly in time for it.
WORDS = [
    "+recipe=fashion_lenet5", "strategy=async", f"workers={WORKERS}", "worker_batch=2",
    "log_steps=20",
    "inputs=synthetic", "data.train_examples=3000", "data.val_examples=100", "device=cpu",
    "schedule.milestones=[]", "schedule.warmup_epochs=0", "comm.timeout=60",
]  # fmt: skip
LIMIT = 15.0
"""Seconds within which who is left goes on, or says that it cannot."""


@contextmanager
def started(
    folder: Path, *words: str, supervised: bool = True
) -> Iterator["subprocess.Popen[str]"]:
    """The job of all workers and a server, each a process that is started by itself."""
    size = WORKERS + ("strategy.order=live" in words or "strategy=sync" in words)
    program = [sys.executable, "-m", "lsgd.supervise.singly", str(size), "--"]
    program += [sys.executable, "-m", "lsgd.train", *WORDS, *words, f"run_dir={folder}"]
    if supervised:
        program = [sys.executable, "-m", "lsgd.supervise", "--", *program]
    # One order of sums: of one thread.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with folder.with_suffix(".txt").open("a") as output:
        job = subprocess.Popen(
            program, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )
    try:
        yield job
    finally:
        job.kill()
        job.wait()
        members.stop(folder)


def processes(job: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    """The processes of the job that are alive, by rank."""
    try:
        return ranks(psutil.Process(job.pid).children(recursive=True))
    except psutil.Error:
        return {}


def said(folder: Path) -> str:
    return folder.with_suffix(".txt").read_text(errors="replace")


def starts(folder: Path) -> int:
    """How many times the whole job was started: again without process 0, or while all meet."""
    return said(folder).count("supervise: starts ")


def written(folder: Path) -> int:
    return len(read_rows(folder / "metrics.jsonl"))


def until(condition, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, said(folder)[-3000:]
        time.sleep(0.05)


def again(recorded: Path, folder: Path, *words: str) -> None:
    """Make the run again, alone."""
    order = f"strategy.order={recorded / 'orders.npz'}"
    command = [sys.executable, "-m", "lsgd.train", *WORDS, *words, order, f"run_dir={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ours, theirs = saved(recorded), saved(folder)
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(ours.model, theirs.model, **exact)
    torch.testing.assert_close(ours.optimizer["state"], theirs.optimizer["state"], **exact)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.soak(everywhere=True)),
        pytest.param(30, marks=pytest.mark.soak),
    ],
)
def test_workers_are_killed_and_come_back(tmp_path: Path, kills: int, soak: Soak) -> None:
    """No batch is lost or used twice, nobody waits long, and the order says what has come out."""
    draw = random.Random(f"{soak.seed} {kills}")
    epochs = f"epochs={2 + 2 * kills}"
    folder = tmp_path / "run"
    longest = 0.0
    with started(folder, "strategy.order=live", epochs) as job:
        until(lambda: (folder / "metrics.jsonl").exists() and written(folder) > 2, 90, folder)
        for number in range(kills):
            time.sleep(draw.uniform(0, 2))
            until(lambda: len(processes(job)) == WORKERS + 1 or job.poll() is not None, 90, folder)
            if job.poll() is not None:
                break
            # Process 0 takes the whole job with it, as it keeps the folder: one in ten.
            rank = 0 if draw.random() < 0.1 else draw.randrange(1, WORKERS)
            victim, before = processes(job)[rank], (written(folder), starts(folder))
            victim.send_signal(signal.SIGKILL)
            begin = time.monotonic()
            until(
                lambda before=before: (
                    written(folder) > before[0]
                    or starts(folder) > before[1]
                    or job.poll() is not None
                ),
                LIMIT,
                folder,
            )
            seconds = time.monotonic() - begin
            longest = max(longest, seconds if rank else 0.0)
            soak.note(f"- kill {number + 1} of worker {rank}: others go on in {seconds:.1f} s")
        until(lambda: job.poll() is not None, 600, folder)
        assert job.returncode == 0, said(folder)[-3000:]
    assert "is back as pid" in said(folder)
    again(folder, tmp_path / "again", epochs)
    soak.note(f"- made again bit by bit; the longest wait {longest:.1f} s")


def test_without_its_server_the_job_ends_and_goes_on_from_the_last_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "strategy.order=live", "epochs=4", supervised=False) as job:
        until(lambda: rows(folder, "epoch") != [] if (folder / "metrics.jsonl").exists() else False,
              90, folder)  # fmt: skip
        processes(job)[WORKERS].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        until(lambda: job.poll() is not None, LIMIT, folder)
        assert time.monotonic() - begin < LIMIT
        assert job.returncode == 5, said(folder)[-3000:]
        assert "another process has left the job" in said(folder)
    with started(folder, "strategy.order=live", "epochs=4", supervised=False) as job:
        until(lambda: job.poll() is not None, 120, folder)
        assert job.returncode == 0, said(folder)[-3000:]
    again(folder, tmp_path / "again", "epochs=4")


def test_without_a_worker_a_synchronous_job_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["strategy=sync", "epochs=4", "comm=torch"]
    with started(folder, *words, supervised=False) as job:
        until(lambda: (folder / "metrics.jsonl").exists() and written(folder) > 2, 90, folder)
        processes(job)[1].send_signal(signal.SIGKILL)
        until(lambda: job.poll() is not None, LIMIT, folder)
        assert job.returncode == 5, said(folder)[-3000:]
