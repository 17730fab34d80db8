"""What befalls a run while it runs: signals and kills, anywhere; the same words again end equal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from lsgd import checkpoint, config
from lsgd.metrics import read_rows
from lsgd.train import train

sys.path.insert(0, str(Path(__file__).parent))
from launching import AS_ROOT, command

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

# 4 epochs of 5 steps; each evaluation is of 4000 images, two at a time.
STEPS = 5
WORDS = [
    "+recipe=digits", "epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1",
    "precision=float64", "model.last_gamma=1.0", "log_steps=1", "checkpoint_steps=2",
    "inputs=synthetic", "data.val_examples=4000", "val_batch=2",
]  # fmt: skip
RANK = {"torch": "RANK", "horovod-gloo": "HOROVOD_RANK", "horovod-mpi": "OMPI_COMM_WORLD_RANK"}
HOROVOD = pytest.param("horovod-gloo", marks=pytest.mark.horovod)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that every other one has to be equal to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(config.load_recipe([*WORDS, f"run_dir={folder}"]))
    return folder


def rows(folder: Path, kind: str) -> list[dict]:
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == kind]


def saved(folder: Path) -> checkpoint.Checkpoint:
    path = folder / checkpoint.FILE
    return checkpoint.load(checkpoint.read(path), str(path))


def assert_equal(folder: Path, undisturbed: Path) -> None:
    """Every row once, and the last state, to 1e-10."""
    for kind in ("train", "epoch"):
        for one, other in zip(rows(folder, kind), rows(undisturbed, kind), strict=True):
            exact = ("step", "epoch", "lr", "val_top1_error", "train_top1_error")
            assert [one.get(key) for key in exact] == [other.get(key) for key in exact]
            loss = "loss" if kind == "train" else "train_loss"
            assert one[loss] == pytest.approx(other[loss], rel=1e-10)
    one, other = saved(folder), saved(undisturbed)
    assert (one.step, one.errors) == (other.step, other.errors)
    torch.testing.assert_close(one.model, other.model, rtol=0, atol=1e-10)


@contextmanager
def job(library: str, processes: int, folder: Path, *words: str) -> Iterator[subprocess.Popen]:
    """The run under a launcher, or alone; what it says is kept, and no process is left of it."""
    arguments = ["-m", "lsgd.train", *WORDS, *words, f"run_dir={folder}"]
    start = [sys.executable, *arguments]
    if library != "alone":
        start = command(library, processes, *arguments)
    with folder.with_suffix(".said").open("a") as output:
        process = subprocess.Popen(
            start, env=os.environ | AS_ROOT, stdout=output, stderr=output, start_new_session=True
        )
    everybody = [psutil.Process(process.pid)]
    try:
        yield process
    finally:
        everybody += everybody[0].children(recursive=True) if process.poll() is None else []
        for each in everybody:
            if each.is_running():
                each.kill()
        process.wait(30)


def trainers(launcher: subprocess.Popen, library: str) -> dict[int, psutil.Process]:
    """The training processes by their rank."""
    if library == "alone":
        return {0: psutil.Process(launcher.pid)}
    found = {}
    for child in psutil.Process(launcher.pid).children(recursive=True):
        try:
            if "lsgd.train" in child.cmdline() and RANK[library] in (its := child.environ()):
                found[int(its[RANK[library]])] = child
        except psutil.Error:
            continue  # it has just ended
    return found


def wait_for(condition: Callable[[], object], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if condition():
            return
        assert process.poll() is None, "the run has ended"
        time.sleep(0.003)
    raise AssertionError("two minutes went by")


def said(folder: Path) -> str:
    return folder.with_suffix(".said").read_text()


@pytest.mark.parametrize(
    ("library", "number", "rank", "step"),
    [
        ("alone", signal.SIGUSR1, 0, 7),
        ("torch", signal.SIGTERM, 1, 3),
        pytest.param("horovod-gloo", signal.SIGUSR2, 1, 2 * STEPS, marks=pytest.mark.horovod),
    ],
)
def test_a_signal_to_one_process_makes_all_leave_after_the_same_step(
    tmp_path: Path, undisturbed: Path, library: str, number: int, rank: int, step: int
) -> None:
    """In training, or, after the last step of an epoch, in the evaluation; and again, while it
    leaves."""
    run = tmp_path / "run"
    with job(library, 2, run) as process:
        wait_for(lambda: len(rows(run, "train")) >= step, process)
        victim = trainers(process, library)[rank]
        victim.send_signal(number)
        time.sleep(0.05)
        if victim.is_running():
            victim.send_signal(number)
        begin = time.monotonic()
        code = process.wait(60)
        seconds = time.monotonic() - begin
    left = saved(run)
    assert f"lsgd: told to leave by a signal: saved after step {left.step}" in said(run)
    assert said(run).count("told to leave") == 1, said(run)
    assert code == 75 if library == "alone" else code != 0
    if library == "torch":
        assert said(run).count("exitcode  : 75") == 1 or "exitcode: 75" in said(run), said(run)
    assert seconds < 15
    if step % STEPS == 0:
        # In the middle of the evaluation, which is not counted as made.
        assert (left.step, len(left.errors)) == (step, step // STEPS - 1)
    else:
        assert step < left.step <= step + 8
    assert [row["step"] for row in rows(run, "train")] == list(range(1, left.step + 1))

    train(config.load_recipe([*WORDS, f"run_dir={run}"]))
    assert_equal(run, undisturbed)
