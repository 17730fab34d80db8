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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from helpers.soak import Soak
from helpers.undisturbed import rows, saved
from helpers.victims import ranks

from lsgd import config
from lsgd.job import members
from lsgd.strategy.gate import Tickets
from lsgd.strategy.order import play
from lsgd.strategy.recorded import load_orders
from lsgd.strategy.virtual import make_gates

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = 3
# 1500 batches in an epoch, so that who comes back is mostly in time for it.
WORDS = [
    "+recipe=fashion_lenet5", "strategy=async", f"workers={WORKERS}", "worker_batch=2",
    "log_steps=20",
    "inputs=synthetic", "data.train_examples=3000", "data.val_examples=100", "device=cpu",
    "schedule.milestones=[]", "schedule.warmup_epochs=0", "comm.timeout=180",
]  # fmt: skip
LIMIT = 15.0
"""Seconds within which who is left goes on, or says that it cannot."""
SILENT = 180.0
"""Seconds without a row of the run after which it counts as hung: the whole job is started again in
less, also where ten others want each core. A run as a whole has no other limit, as it takes minutes
on an idle machine and half an hour on such a one."""


@contextmanager
def started(
    folder: Path, *words: str, supervised: bool = True, launcher: str = "singly"
) -> Iterator["subprocess.Popen[str]"]:
    """The job of all workers and a server, each a process that is started by itself."""
    size = WORKERS + ("strategy.order=live" in words or "strategy=sync" in words)
    recipe, *others = *WORDS, *words, f"run_dir={folder}"
    script = ["bash", f"{ROOT}/launch/{launcher}.sh", recipe.partition("=")[2]]
    program = [*script, *others, "--np", str(size)]
    if supervised:
        program = [sys.executable, "-m", "lsgd.supervise", "--", *program]
    # One order of sums: of one thread.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
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


def process_of(rank: int, job: "subprocess.Popen[str]", folder: Path) -> psutil.Process:
    """The process of a rank, once it is alive."""
    found: list[psutil.Process] = []

    def find() -> bool:
        found[:] = [each for number, each in processes(job).items() if number == rank]
        return found != []

    until_over(job, folder, find)
    assert found, said(folder)[-3000:]
    return found[0]


def wait_for_all(job: "subprocess.Popen[str]", folder: Path) -> None:
    """Halt the server until all others are back, so that the run does not end before."""

    def met() -> list[int]:
        return [rank for rank, each in processes(job).items() if has_met(each)]

    until(lambda: WORKERS in met(), SILENT, folder)
    with suppress(KeyError, psutil.Error):  # if the whole job is started again
        server = processes(job)[WORKERS]
        server.suspend()
        until(lambda: len(met()) == WORKERS + 1 or not server.is_running(), SILENT, folder)
        server.resume()


def has_met(process: psutil.Process) -> bool:
    """Whether a process has connected with another."""
    try:
        return process.net_connections() != []
    except psutil.Error:
        return False


def returns(folder: Path) -> list[int]:
    """The workers that have come back, as the order has them."""
    orders = load_orders(folder / "orders.npz").epochs.values()
    events = [int(event) for of_epoch in orders for [row] in of_epoch for event in row]
    return [event - WORKERS for event in events if event >= WORKERS]


def said(folder: Path) -> str:
    return folder.with_suffix(".txt").read_text(errors="replace")


def starts(folder: Path) -> int:
    """How many times the whole job was started: again without process 0, or while all meet."""
    return said(folder).count("supervise: starts ")


def written(folder: Path) -> int:
    """How many rows the run has."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until_written(folder: Path, count: int) -> None:
    until(lambda: written(folder) > count, SILENT, folder)


def until(condition, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, said(folder)[-3000:]
        time.sleep(0.05)


def until_over(
    job: "subprocess.Popen[str]", folder: Path, condition: Callable[[], bool] = lambda: False
) -> None:
    """Wait for a condition, or else the end of the job, as long as rows of its run come."""
    seen, since = -1, 0.0
    while not condition() and job.poll() is None:
        if (now := written(folder)) != seen:
            seen, since = now, time.monotonic()
        assert time.monotonic() < since + SILENT, said(folder)[-3000:]
        time.sleep(0.05)


def again(recorded: Path, folder: Path, *words: str) -> None:
    """Make the run again, alone."""
    order = f"strategy.order={recorded / 'orders.npz'}"
    command = [sys.executable, "-m", "lsgd.train", *WORDS, *words, order, f"run_dir={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with folder.with_suffix(".txt").open("w") as output:
        job = subprocess.Popen(command, env=environment, stdout=output, stderr=output, text=True)
    with job:
        try:
            until_over(job, folder)
        finally:
            job.kill()
    assert job.returncode == 0, said(folder)[-3000:]
    ours, theirs = saved(recorded), saved(folder)
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(ours.model, theirs.model, **exact)
    torch.testing.assert_close(ours.optimizer["state"], theirs.optimizer["state"], **exact)


def assert_each_batch_once(folder: Path, *words: str) -> None:
    """In each epoch every batch has been computed and applied, by one worker."""
    recipe = config.load_recipe([*WORDS, *words])
    orders = load_orders(folder / "orders.npz")
    assert [*orders.epochs] == [*range(recipe.epochs)]
    for of_epoch in orders.epochs.values():
        gates = partial(make_gates, recipe.strategy, WORKERS)
        tickets = Tickets(recipe.tickets, ahead=orders.ahead)
        script = play(of_epoch, gates, tickets, WORKERS)
        assert sorted(push.ticket for push in script.pushes) == [*range(recipe.tickets)]


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
    epochs = f"epochs={3 + 7 * kills // 10}"
    folder = tmp_path / "run"
    longest = 0.0
    with started(folder, "strategy.order=live", epochs) as job:
        until_written(folder, 2)
        for number in range(1, kills + 1):
            # By what was done since, half an epoch on average: a second is not the same everywhere.
            due = written(folder) + draw.randrange(75)
            # Process 0 takes the whole job with it, as it keeps the folder: one in ten.
            rank = 0 if number % 10 == 5 else draw.randrange(1, WORKERS)
            until_over(job, folder, lambda due=due: written(folder) >= due)
            victim = process_of(rank, job, folder)
            before = written(folder), starts(folder)
            trains = "\nstep " in said(folder).rpartition("supervise: starts ")[2]
            with suppress(psutil.NoSuchProcess):  # it may have come too late for its epoch
                victim.kill()
            begin = time.monotonic()
            until_over(
                job,
                folder,
                lambda before=before: before != (written(folder), starts(folder)),
            )
            seconds = time.monotonic() - begin
            soak.note(f"- kill {number} of worker {rank}: others go on in {seconds:.1f} s")
            if trains and starts(folder) == before[1]:  # else the whole job had to start
                assert seconds < LIMIT, said(folder)[-3000:]
                longest = max(longest, seconds)
        wait_for_all(job, folder)
        until_over(job, folder)
        assert job.returncode == 0, said(folder)[-3000:]
    assert returns(folder)
    assert_each_batch_once(folder, epochs)
    again(folder, tmp_path / "again", epochs)
    soak.note(
        f"- {kills} kills, {len(returns(folder))} returns in the midst of an epoch; made again bit "
        f"by bit; the longest wait of the others {longest:.1f} s"
    )


@pytest.mark.ray
def test_a_worker_whose_actor_is_killed_comes_back(tmp_path: Path, soak: Soak) -> None:
    """Ray starts the actor again; its process of before has told nobody to leave."""
    folder, worker, epochs = tmp_path / "run", 2, "epochs=3"
    words = ["strategy.order=live", epochs]
    with started(folder, *words, supervised=False, launcher="ray") as job:
        until_written(folder, 2)
        victim = processes(job)[worker]
        victim.parent().kill()
        begin = time.monotonic()
        victim.wait(LIMIT)
        wait_for_all(job, folder)
        seconds = time.monotonic() - begin
        until_over(job, folder)
        assert job.returncode == 0, said(folder)[-3000:]
    assert seconds < 30
    # A life that is too late for an epoch ends, and the next one comes too.
    assert set(returns(folder)) == {worker}
    again(folder, tmp_path / "again", epochs)
    soak.note(f"- the actor of worker {worker} killed: its process is back in {seconds:.1f} s")


def test_without_its_server_the_job_ends_and_goes_on_from_the_last_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with started(folder, "strategy.order=live", "epochs=4", supervised=False) as job:
        until(lambda: written(folder) and rows(folder, "epoch") != [], SILENT, folder)
        processes(job)[WORKERS].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        until(lambda: job.poll() is not None, LIMIT, folder)
        assert time.monotonic() - begin < LIMIT
        assert job.returncode == 5, said(folder)[-3000:]
        assert "another process has left the job" in said(folder)
    with started(folder, "strategy.order=live", "epochs=4", supervised=False) as job:
        until_over(job, folder)
        assert job.returncode == 0, said(folder)[-3000:]
    again(folder, tmp_path / "again", "epochs=4")


def test_without_a_worker_a_synchronous_job_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ["strategy=sync", "epochs=4", "comm=torch"]
    with started(folder, *words, supervised=False) as job:
        until_written(folder, 2)
        processes(job)[1].send_signal(signal.SIGKILL)
        until(lambda: job.poll() is not None, LIMIT, folder)
        assert job.returncode == 5, said(folder)[-3000:]
