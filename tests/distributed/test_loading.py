"""Training from image files: one trajectory through every loader, and what happens when one fails.

A small ResNet on real images of 20 classes at 64 pixels.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from helpers.launching import AS_ROOT, command, launch
from helpers.tiny_images import write_images
from helpers.victims import victims

from lsgd.inputs.index import Index, index_file
from lsgd.prepare.scan import index_folder
from lsgd.rules import sampler
from lsgd.run import checkpoint
from lsgd.run.metrics import read_rows
from lsgd.strategy.recorded import load_orders

pytestmark = [
    pytest.mark.distributed, pytest.mark.data, pytest.mark.dali, pytest.mark.slow
]  # fmt: skip

TRAIN, VAL, K, N, SEED = 1280, 200, 8, 16, 3
STEPS = TRAIN // (K * N)
BAND = 0.02
"""Of the loss between two loaders, whose pixels differ by a fifth of an 8-bit level on average."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """64 images of each class to train and 10 to validate."""
    root = tmp_path_factory.mktemp("tiny")
    write_images(root, test_data, train=TRAIN, val=VAL)
    return root


def words(root: Path, run: Path, loader: str) -> list[str]:
    return [
        "-m", "lsgd.train", "+recipe=bs256", "data=tiny_imagenet", f"data.root={root}",
        f"data.train_examples={TRAIN}", f"data.val_examples={VAL}", "data.classes=20",
        f"inputs={loader}", "inputs.decoders=1", "model=small_resnet", f"workers={K}",
        f"worker_batch={N}", "workers_per_pass=4", "epochs=2", "schedule.milestones=[1]",
        "schedule.warmup=none", f"seed={SEED}", "log_steps=1", "checkpoint_steps=4", "device=cpu",
        f"run_dir={run}",
    ]  # fmt: skip


def losses(run: Path) -> dict[int, float]:
    rows = read_rows(run / "metrics.jsonl")
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


def apart(one: Path, other: Path) -> float:
    a, b = losses(one), losses(other)
    assert list(a) == list(b) == list(range(1, 2 * STEPS + 1))
    return max(abs(a[step] - b[step]) for step in a)


@pytest.fixture(scope="module")
def runs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole runs through both loaders, alone and on three processes."""
    folder = tmp_path_factory.mktemp("runs")
    alone = [
        subprocess.Popen(
            [sys.executable, *words(root, folder / f"{loader}1", loader)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for loader in ("dali", "torchvision")
    ]  # fmt: skip
    for each in alone:
        _, said = each.communicate(timeout=200)
        assert each.returncode == 0, said
    for loader in ("dali", "torchvision"):
        done = launch("forked", 3, *words(root, folder / f"{loader}3", loader))
        assert done.returncode == 0, done.stderr
        assert f"; {'DALI' if loader == 'dali' else 'torchvision'} " in done.stdout
    return folder


@pytest.mark.side_by_side
def test_one_loss_curve_through_both_loaders_on_1_and_3_processes(runs: Path) -> None:
    for loader in ("dali", "torchvision"):
        # The same pixels: only the order of sums differs.
        assert apart(runs / f"{loader}1", runs / f"{loader}3") < 1e-3
    for processes in (1, 3):
        assert apart(runs / f"dali{processes}", runs / f"torchvision{processes}") < BAND


@pytest.mark.side_by_side
@pytest.mark.parametrize(("loader", "processes"), [("dali", 3), ("torchvision", 1)])
def test_resumed_in_mid_epoch_it_takes_the_next_examples(
    root: Path, runs: Path, tmp_path: Path, loader: str, processes: int
) -> None:
    """Killed within the second epoch and finished: any other example would show in the loss of its
    step."""
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, *words(root, run, loader)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for_step(process, run, STEPS + 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    saved = checkpoint.load(checkpoint.read(run / "checkpoint.pt"), "it")
    assert STEPS < saved.step < 2 * STEPS
    done = launch("forked", processes, *words(root, run, loader))
    assert done.returncode == 0, done.stderr
    assert f"resumes after step {saved.step}" in done.stdout
    assert apart(run, runs / f"{loader}1") < 1e-3


def wait_for_step(process: subprocess.Popen, run: Path, step: int) -> None:
    for _ in range(1200):
        if max(losses(run), default=0) >= step:
            return
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError(f"no step {step} in two minutes")


# --- What fails while it runs ----------------------------------------------------------------


def later_file(root: Path) -> Path:
    """A file that the second of two processes needs in the middle of the second epoch."""
    order = sampler.epoch_order(TRAIN, seed=SEED, epoch=1)
    example = order[STEPS // 2 * K * N + K * N * 3 // 4]
    return Path(Index(root, index_file(root, "train")).path(example))


@pytest.fixture
def fragile(root: Path) -> Iterator[Path]:
    """The dataset, whose file that is damaged is put right again."""
    file = later_file(root)
    content = file.read_bytes()
    yield root
    file.unlink(missing_ok=True)
    file.write_bytes(content)
    index_folder(root)


def truncate(root: Path, _: subprocess.Popen) -> str:
    os.truncate(later_file(root), 700)
    return f"{later_file(root)} cannot be read (it has 700 bytes, and had "


def remove(root: Path, _: subprocess.Popen) -> str:
    later_file(root).unlink()
    return f"{later_file(root)} cannot be read (No such file or directory)"


def break_disk(root: Path, _: subprocess.Popen) -> str:
    """Reading the start of a process's memory is an input/output error."""
    later_file(root).unlink()
    later_file(root).symlink_to("/proc/self/mem")
    return f"{later_file(root)} cannot be read (Input/output error)"


def kill_decoder(root: Path, job: subprocess.Popen) -> str:
    """That of one of the two."""
    children = psutil.Process(job.pid).children(recursive=True)
    victims((child.pid for child in children), "decoder")[0].kill()
    return "a process that decodes images has died"


@pytest.mark.parametrize(
    ("library", "loader", "harm"),
    [
        ("torch", "dali", truncate),
        pytest.param("horovod-gloo", "dali", break_disk, marks=pytest.mark.horovod),
        pytest.param(
            "horovod-mpi", "torchvision", remove, marks=[pytest.mark.horovod, pytest.mark.mpi]
        ),
        ("torch", "torchvision", kill_decoder),
    ],
)
def test_a_failure_ends_all_processes_with_a_sentence(
    fragile: Path, runs: Path, tmp_path: Path, library: str, loader: str, harm
) -> None:
    """Never a hang; the checkpoint is whole, and once it is put right the run goes on."""
    run, said = tmp_path / "run", tmp_path / "said"
    with said.open("w") as output:
        job = subprocess.Popen(
            command(library, 2, *words(fragile, run, loader)),
            env=os.environ | AS_ROOT, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for_step(job, run, 5)
            sentence = harm(fragile, job)
            # The steps until the file is needed, and then 30 seconds at most.
            assert job.wait(timeout=60) != 0
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    text = said.read_text()
    assert sentence in text
    # mpirun ends the others as soon as one has failed, before they can say so.
    assert library == "horovod-mpi" or "another process has left the job" in text
    assert "Traceback" not in text.partition("lsgd: process")[0]
    if harm is not kill_decoder:
        assert f"needed in step {STEPS // 2 + 1} of epoch 2" in text
    saved = checkpoint.load(checkpoint.read(run / "checkpoint.pt"), "it")
    assert 4 <= saved.step <= STEPS + STEPS // 2


@pytest.mark.side_by_side
def test_a_run_goes_on_once_the_file_is_put_right(
    fragile: Path, runs: Path, tmp_path: Path
) -> None:
    run, file = tmp_path / "run", later_file(fragile)
    content = file.read_bytes()
    file.write_bytes(content[:700])
    start = [sys.executable, *words(fragile, run, "dali")]
    done = subprocess.run(start, capture_output=True, text=True, timeout=100)
    assert done.returncode == 4, done.stderr
    assert f"lsgd: process 0: {file} cannot be read (it has 700 bytes" in done.stderr
    file.write_bytes(content)
    done = subprocess.run(start, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert apart(run, runs / "dali1") < 1e-6


@pytest.mark.side_by_side
@pytest.mark.parametrize("loader", ["torchvision", "dali"])
def test_live_workers_hold_tickets_for_a_loader_that_looks_ahead(
    root: Path, tmp_path: Path, loader: str
) -> None:
    """The batches are read before they are computed with; the order says whose they are."""
    from lsgd.inputs.dali import (
        AHEAD,
    )  # where DALI is not installed, this file is read all the same

    live, again = tmp_path / "live", tmp_path / "again"
    asynchronous = [
        "strategy=async", "workers=2", "checkpoint_steps=0", "workers_per_pass=1", "epochs=1",
        "schedule.milestones=[]",
    ]  # fmt: skip
    done = launch("forked", 3, *words(root, live, loader), *asynchronous, "strategy.order=live")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    orders = load_orders(live / "orders.npz")
    assert orders.ahead == {"torchvision": 2, "dali": AHEAD + 3}[loader]
    order = f"strategy.order={live / 'orders.npz'}"
    command = [sys.executable, *words(root, again, loader), *asynchronous, order]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, timeout=120, capture_output=True)
    ours, theirs = (
        checkpoint.load(checkpoint.read(run / "checkpoint.pt"), "") for run in (live, again)
    )
    torch.testing.assert_close(ours.model, theirs.model, rtol=0, atol=0)
