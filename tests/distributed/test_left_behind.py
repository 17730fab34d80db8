"""What is left of a job 5 seconds after a kill -9 of one of its processes: nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers.folders import make_numbered
from helpers.launching import AS_ROOT, command
from helpers.undisturbed import rows

from lsgd.job.ending import end, tagged

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_numbered(tmp_path_factory.mktemp("made") / "root", 40, (64, 64))


def named(pids: set[int], words: str) -> int:
    """The first process whose command line has these words, or whose environment."""
    for pid in sorted(pids):
        process = psutil.Process(pid)
        line = " ".join(process.cmdline())
        variables = [f"{name}={value}" for name, value in process.environ().items()]
        if words in line or (
            "spawn_main" not in line and "fork" not in line and words in variables
        ):
            return pid
    raise AssertionError(words)


@pytest.mark.parametrize(
    ("library", "victim", "supervised"),
    [
        ("alone", "lsgd.train", False),
        ("torch", "torch.distributed.run", False),
        ("torch", "RANK=1", False),
        ("torch", "torch.distributed.run", True),
        ("torch", "lsgd.supervise", True),
        pytest.param("horovod-gloo", "horovod.runner.launch", False, marks=pytest.mark.horovod),
        pytest.param("horovod-mpi", "mpirun", False, marks=[pytest.mark.horovod, pytest.mark.mpi]),
    ],
)
def test_nothing_is_left_after_a_kill(
    tmp_path: Path, root: Path, library: str, victim: str, supervised: bool
) -> None:
    words = [
        "-m", "lsgd.train", "+recipe=bs256", "data=tiny_imagenet", f"data.root={root}",
        "data.train_examples=40", "data.val_examples=40", "data.classes=40", "device=cpu",
        "inputs=torchvision", "inputs.decoders=2", "model=small_resnet", "workers=4",
        "worker_batch=4", "workers_per_pass=1", "epochs=300", "log_steps=1",
        f"run_dir={tmp_path}/run",
    ]  # fmt: skip
    start = [sys.executable, *words] if library == "alone" else command(library, 2, *words)
    if supervised:
        start = [sys.executable, "-m", "lsgd.supervise", "--restarts", "0", "--", *start]
    tag = ("LSGD_TEST_TAG", str(tmp_path))
    environment = os.environ | AS_ROOT | dict([tag]) | {"OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    job = subprocess.Popen(start, env=environment, start_new_session=True, **quiet)
    try:
        deadline = time.monotonic() + 90
        while len(rows(tmp_path / "run", "train")) < 3:
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.05)
        os.kill(named(tagged(tag), victim), signal.SIGKILL)
        begin = time.monotonic()
        while left := tagged(tag):
            assert time.monotonic() - begin < 5, f"{len(left)} processes are left"
            job.poll()
            time.sleep(0.05)
    finally:
        end(tag, 0)
        job.wait()
