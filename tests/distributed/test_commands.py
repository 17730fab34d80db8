"""The command line under real launchers: rehearsals and refusals."""

from pathlib import Path

import pytest
from helpers.launching import launch
from helpers.undisturbed import rows

from lsgd import config

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]


@pytest.mark.horovod
def test_rehearsal_on_horovod(tmp_path: Path) -> None:
    words = ["+recipe=bs1k", "rehearse=true", "log_steps=1", "workers_per_pass=11"]
    done = launch("horovod-gloo", 3, "-m", "lsgd.train", *words, f"run_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "3 processes by horovodrun over Horovod (Gloo)" in done.stdout
    original = config.load_recipe(["+recipe=bs1k"])
    made = {row["step"]: row["lr"] for row in rows(tmp_path / "run", "train")}
    assert len(made) == 6
    wanted = [original.lr(step - 1) for step in made]
    assert list(made.values()) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.mpi
def test_the_launcher_says_two_and_the_library_one(tmp_path: Path) -> None:
    """Two processes that would each train alone stop, with both numbers, and leave nothing."""
    words = ["+recipe=digits", "comm=single", f"run_dir={tmp_path / 'run'}"]
    done = launch("horovod-mpi", 2, "-m", "lsgd.train", *words)
    assert done.returncode == 2
    assert "mpirun started 2 processes but comm=single sees 1" in done.stderr
    assert done.stderr.count("lsgd: ") == 1
    assert not (tmp_path / "run").exists()


def test_more_processes_than_workers(tmp_path: Path) -> None:
    words = ["+recipe=digits", "workers=2", f"run_dir={tmp_path / 'run'}"]
    done = launch("torch", 3, "-m", "lsgd.train", *words)
    assert done.returncode != 0
    assert "3 processes cannot share workers=2; start 2 or fewer" in done.stderr
    # torchrun adds a traceback of its own, lsgd does not.
    assert "lsgd/train.py" not in done.stderr
    assert not (tmp_path / "run").exists()
