"""Workers of an asynchronous run are killed and stopped again and again; servers, and the run made
again.

`make soak` kills thirty workers and stops ten, and `make test-all` kills three. What comes out is
the run that its order says, whoever was lost.
"""

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from helpers.composed import compose_recipe
from helpers.launching import fork_command
from helpers.reference_run import newest_checkpoint
from helpers.soak import FaultSeries
from helpers.started import Job, start_job

from lsgd.strategy.gate import Tickets
from lsgd.strategy.order import play_orders
from lsgd.strategy.recorded import load_orders
from lsgd.strategy.virtual import make_gates

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = 3
WORDS = [
    "+recipe=fashion_lenet5", "strategy=async", f"workers={WORKERS}", "worker_batch=2",
    "log_steps=5", "inputs=synthetic", "data.train_examples=1200", "data.val_examples=20",
    "device=cpu", "schedule.milestones=[]", "schedule.warmup_epochs=0", "comm.timeout=3600",
]  # fmt: skip
SHORT = "data.train_examples=600"
"""300 batches in an epoch instead of 600, where a process is killed at its beginning or its end."""
# Started in place of Python: process 1 of the first start is killed in its first evaluation.
KILLED_IN_EVALUATION = """#!/bin/sh
if [ "$RANK" = 1 ] && [ "$2" = lsgd.train ] && mkdir {folder}/killed 2>/dev/null; then
    shift 2
    exec {python} {folder}/killed.py {checkpoint} "$@"
fi
exec {python} "$@"
"""
KILLED = """
import os, signal, sys, time
from lsgd import train

def evaluate(*_):
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

train.evaluate = evaluate
sys.exit(train.main(sys.argv[2:]))
"""


def live(
    folder: Path, *words: str, supervised: bool = True, launcher: str = "singly",
    workers: int = WORKERS,
) -> list[str]:  # fmt: skip
    """The command line of all workers and a server, each a process that is started by itself."""
    recipe, *others = *WORDS, *words, "strategy.order=live", f"run_dir={folder}"
    program = ["bash", f"{ROOT}/launch/{launcher}.sh", recipe.partition("=")[2], *others]
    program += ["--np", str(workers + 1)]
    return [sys.executable, "-m", "lsgd.supervise", "--", *program] if supervised else program


def process_of(rank: int, job: Job) -> psutil.Process:
    """The process of a rank, once it is alive."""
    found: dict[int, psutil.Process] = {}
    job.until(lambda: found.update(job.ranks()) or rank in found)
    return found[rank]


def wait_for_all(job: Job, workers: int = WORKERS) -> None:
    """Halt the server until all others are back, so that the epoch does not end before."""
    server = process_of(workers, job)
    with suppress(psutil.Error):  # if the whole job is started again
        # One that the others have not met yet would keep them from ever meeting.
        job.until(lambda: has_met(server) or not is_alive(server))
        server.suspend()
        job.until(lambda: sum(map(has_met, job.ranks().values())) > workers or not is_alive(server))
        server.resume()


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def has_met(process: psutil.Process) -> bool:
    """Whether a process has connected with another."""
    try:
        return process.net_connections() != []
    except psutil.Error:
        return False


def returns(folder: Path, workers: int = WORKERS) -> list[int]:
    """The workers that have come back, as the order has them."""
    orders = load_orders(folder / "orders.npz").epochs.values()
    events = [int(event) for of_epoch in orders for [row] in of_epoch for event in row]
    return [event - workers for event in events if workers <= event < 2 * workers]


def written(job: Job) -> tuple[int, int]:
    """How many rows the run has, and how often the whole job was started: again without process 0,
    or while all meet."""
    path = job.folder / "metrics.jsonl"
    rows = path.read_bytes().count(b"\n") if path.exists() else 0
    return rows, job.output_text.count("supervise: starts ")


def again(recorded: Path, folder: Path, *words: str) -> None:
    """Make the run again, alone."""
    order = f"strategy.order={recorded / 'orders.npz'}"
    command = [*fork_command(), "-m", "lsgd.train", *WORDS, *words, order, f"run_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    ours, theirs = newest_checkpoint(recorded), newest_checkpoint(folder)
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(ours.model, theirs.model, **exact)
    torch.testing.assert_close(ours.optimizer["state"], theirs.optimizer["state"], **exact)


def assert_each_batch_once(folder: Path, *words: str) -> None:
    """In each epoch every batch has been computed and applied, by one worker."""
    recipe = compose_recipe(*WORDS, *words)
    orders = load_orders(folder / "orders.npz")
    assert [*orders.epochs] == [*range(recipe.epochs)]
    for of_epoch in orders.epochs.values():
        gates = partial(make_gates, recipe.strategy, WORKERS)
        tickets = Tickets(recipe.tickets, ahead=orders.ahead)
        script = play_orders(of_epoch, gates, tickets, WORKERS)
        assert sorted(push.ticket for push in script.pushes) == [*range(recipe.tickets)]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=pytest.mark.soak(everywhere=True)),
        pytest.param(30, marks=pytest.mark.soak),
    ],
)
def test_workers_are_killed_and_come_back(tmp_path: Path, kills: int, soak: FaultSeries) -> None:
    """No batch is lost or used twice, the others go on, and the order says what has come out."""
    draw = random.Random(f"{soak.seed} {kills}")
    words, folder = (f"epochs={2 + kills // 5}",), tmp_path / "run"
    with start_job(live(folder, *words), folder) as job:
        job.until(lambda: written(job)[0] > 2)
        for number in range(1, kills + 1):
            # By what was done since, a third of an epoch: a second is not the same everywhere.
            due = written(job)[0] + draw.randrange(40)
            # Process 0 takes the whole job with it, as it keeps the folder: one in ten.
            rank = 0 if number % 10 == 5 else draw.randrange(1, WORKERS)
            job.until(lambda due=due: written(job)[0] >= due)
            victim, before = process_of(rank, job), written(job)
            victim.kill()
            job.until(lambda before=before: written(job) != before)
            wait_for_all(job)
            soak.note(f"- kill {number} of worker {rank}: the others went on, and it came back")
        assert job.wait() == 0, job.output_text[-3000:]
    assert returns(folder)
    assert_each_batch_once(folder, *words)
    again(folder, tmp_path / "again", *words)
    soak.note(f"- {len(returns(folder))} returns in the midst of an epoch; made again bit by bit")


@pytest.mark.soak
def test_workers_are_stopped_and_continued(tmp_path: Path, soak: FaultSeries) -> None:
    """The others go on; one that was stopped for longer than comm.timeout comes back anew."""
    draw = random.Random(soak.seed)
    words, folder = ("epochs=30", "comm.timeout=30"), tmp_path / "run"
    with start_job(live(folder, *words, supervised=False), folder) as job:
        job.until(lambda: written(job)[0] > 2)
        for number in range(1, 11):
            rank = draw.randrange(1, WORKERS)
            stopped, before, begin = process_of(rank, job), written(job)[0], time.monotonic()
            stopped.suspend()
            job.until(lambda before=before: written(job)[0] > before + 3)
            seconds = time.monotonic() - begin
            if lost := number % 3 == 0:
                job.until(lambda begin=begin: time.monotonic() > begin + 45)
            stopped.resume()
            if lost:
                job.until(lambda old=stopped: not is_alive(old))
                assert process_of(rank, job) != stopped
            then = "it came back anew" if lost else "it went on"
            soak.note(f"- stop {number} of worker {rank}: rows after {seconds:.1f} s, {then}")
        assert job.wait() == 0, job.output_text[-3000:]
    assert_each_batch_once(folder, *words)
    again(folder, tmp_path / "again", *words)


@pytest.mark.soak
def test_told_to_leave_the_others_save_without_a_stopped_worker(
    tmp_path: Path, soak: FaultSeries
) -> None:
    folder = tmp_path / "run"
    start = live(folder, "epochs=3", supervised=False)
    with start_job(start, folder) as job:
        job.until(lambda: written(job)[0] > 2)
        process_of(2, job).suspend()
        begin = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        assert job.wait() == 75, job.output_text[-3000:]
        soak.note(f"- left {time.monotonic() - begin:.0f} s after it was told, one being stopped")
        job.wait_until_no_processes()
        job.start(start)
        assert job.wait() == 0, job.output_text[-3000:]
    assert_each_batch_once(folder, "epochs=3")
    again(folder, tmp_path / "again", "epochs=3")


def test_without_its_server_or_a_worker_that_evaluates_the_job_ends_and_goes_on(
    tmp_path: Path,
) -> None:
    """From the last epoch; one whose evaluation was not over is evaluated, and has one order."""
    folder, python = tmp_path / "run", tmp_path / "python"
    (tmp_path / "killed.py").write_text(KILLED)
    checkpoint = folder / "checkpoint-300.pt"
    python.write_text(
        KILLED_IN_EVALUATION.format(folder=tmp_path, python=sys.executable, checkpoint=checkpoint)
    )
    python.chmod(0o755)
    words, workers = ("workers=2", "epochs=3", SHORT), 2
    start = live(folder, *words, supervised=False, workers=workers)
    with start_job(start, folder, PYTHON=str(python)) as job:
        assert job.wait() == 5, job.output_text[-3000:]
        assert (tmp_path / "killed").exists()
        assert not job.rows("epoch")
        job.start(start)
        job.until(lambda: job.rows("epoch"))
        process_of(workers, job).send_signal(signal.SIGKILL)
        assert job.wait() == 5, job.output_text[-3000:]
        assert job.output_text.count("another process has exited") >= 2
        job.start(start)
        assert job.wait() == 0, job.output_text[-3000:]
    orders = load_orders(folder / "orders.npz").epochs.values()
    assert [len(of_epoch) for of_epoch in orders] == [1, 1, 1]
    again(folder, tmp_path / "again", *words)


@pytest.mark.ray
def test_a_worker_whose_actor_is_killed_comes_back(tmp_path: Path) -> None:
    """Ray starts the actor again; its process of before has told nobody to leave."""
    folder, worker, workers = tmp_path / "run", 1, 2
    words = (f"workers={workers}", "epochs=2", SHORT)
    start = live(folder, *words, supervised=False, launcher="ray", workers=workers)
    with start_job(start, folder) as job:
        job.until(lambda: written(job)[0] > 2)
        victim, server = process_of(worker, job), process_of(workers, job)
        server.suspend()  # or the epoch may end before the victim has
        victim.parent().kill()
        job.until(lambda: not is_alive(victim))
        server.resume()
        wait_for_all(job, workers)
        assert job.wait() == 0, job.output_text[-3000:]
    # A process that is too late for an epoch, this one or another, ends, and the next one comes.
    assert worker in returns(folder, workers)
    again(folder, tmp_path / "again", *words)


@pytest.mark.soak
@pytest.mark.parametrize("recorded", [False, True])
def test_a_replay_is_killed_and_resumed(tmp_path: Path, recorded: bool, soak: FaultSeries) -> None:
    """Of a schedule, or of what live processes have recorded: it ends with the same bits."""
    words = ["epochs=4"]
    if recorded:
        with start_job(live(tmp_path / "live", *words, supervised=False), tmp_path / "live") as job:
            assert job.wait() == 0, job.output_text[-3000:]
        words.append(f"strategy.order={tmp_path}/live/orders.npz")
    draw, folders = random.Random(soak.seed), [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        start = [sys.executable, "-m", "lsgd.train", *WORDS, *words, f"run_dir={folder}"]
        start.append("checkpoint_steps=7")
        kills = 0
        with start_job(start, folder) as job:
            while folder is folders[1] and kills < 10:
                due = written(job)[0] + draw.randrange(60)
                job.until(lambda due=due, job=job: written(job)[0] >= due)
                job.process.kill()
                job.wait_until_no_processes()
                kills += 1
                job.start(start)
            assert job.wait() == 0, job.output_text[-3000:]
    exact = {"rtol": 0, "atol": 0}
    whole, killed = map(newest_checkpoint, folders)
    torch.testing.assert_close(killed.model, whole.model, **exact)
    torch.testing.assert_close(killed.optimizer, whole.optimizer, **exact)
    soak.note(f"- a replay, {'recorded' if recorded else 'virtual'}: 10 kills, the same bits")
