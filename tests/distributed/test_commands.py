"""The command line under real launchers: rehearsals, refusals, kills."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers.launching import AS_ROOT, command, launch

from lsgd import config
from lsgd.metrics import read_rows
from lsgd.train import train

pytestmark = pytest.mark.distributed

DIGITS = [
    "+recipe=digits", "epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1",
    "precision=float64", "model.last_gamma=1.0", "log_steps=1",
]  # fmt: skip


def epochs(folder: Path) -> list[dict]:
    return [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "epoch"]


def lrs(folder: Path) -> list[tuple[int, float]]:
    rows = read_rows(folder / "metrics.jsonl")
    return [(row["step"], row["lr"]) for row in rows if row["kind"] == "train"]


@pytest.mark.horovod
@pytest.mark.parametrize("processes", [2, 3])
def test_rehearsal_on_horovod(tmp_path: Path, processes: int) -> None:
    words = ["+recipe=bs8k", "rehearse=true", "log_steps=1", "workers_per_pass=32"]
    done = launch(
        "horovod-gloo", processes, "-m", "lsgd.train", *words, f"run_dir={tmp_path / 'together'}"
    )
    assert done.returncode == 0, done.stderr
    assert f"{processes} processes by horovodrun over Horovod (Gloo)" in done.stdout
    original = config.load_recipe(["+recipe=bs8k"])
    made = lrs(tmp_path / "together")
    assert len(made) == 6
    assert [lr for _, lr in made] == pytest.approx(
        [original.lr(step - 1) for step, _ in made], rel=1e-12
    )


@pytest.mark.mpi
def test_the_launcher_says_two_and_the_library_one(tmp_path: Path) -> None:
    """Two processes that would each train alone stop, with both numbers, and leave nothing."""
    words = [*DIGITS, "comm=single", f"run_dir={tmp_path / 'run'}"]
    done = launch("horovod-mpi", 2, "-m", "lsgd.train", *words)
    assert done.returncode == 2
    assert "mpirun started 2 processes but comm=single sees 1" in done.stderr
    assert done.stderr.count("lsgd: ") == 1
    assert not (tmp_path / "run").exists()


def test_more_processes_than_workers(tmp_path: Path) -> None:
    words = [*DIGITS, "workers=2", f"run_dir={tmp_path / 'run'}"]
    done = launch("torch", 3, "-m", "lsgd.train", *words)
    assert done.returncode != 0
    assert "3 processes cannot share workers=2; start at most 2 processes" in done.stderr
    # torchrun adds a traceback of its own, lsgd does not.
    assert "lsgd/train.py" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.horovod
@pytest.mark.slow
def test_killed_on_two_processes_it_goes_on_alone(tmp_path: Path) -> None:
    """kill -9 of one of two Horovod processes in mid-epoch; one process finishes the same run."""
    train(config.load_recipe([*DIGITS, f"run_dir={tmp_path / 'undisturbed'}"]))
    words = [*DIGITS, "checkpoint_steps=1", f"run_dir={tmp_path / 'killed'}"]
    job = subprocess.Popen(
        command("horovod-gloo", 2, "-m", "lsgd.train", *words),
        env=os.environ | AS_ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(lrs(tmp_path / "killed")) < 8:
        time.sleep(0.005)
    victims = subprocess.run(
        ["pgrep", "-f", f"lsgd.train.*{tmp_path / 'killed'}"],
        capture_output=True,
        text=True,
        check=True,
    )
    os.kill(int(victims.stdout.split()[-1]), signal.SIGKILL)
    assert job.wait(timeout=120) != 0

    train(config.load_recipe(words))
    assert lrs(tmp_path / "killed") == lrs(tmp_path / "undisturbed")
    for one, other in zip(
        epochs(tmp_path / "killed"), epochs(tmp_path / "undisturbed"), strict=True
    ):
        assert one["val_top1_error"] == other["val_top1_error"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-9)
