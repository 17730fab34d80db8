"""Training from image files: one trajectory through every loader, and what happens when one fails.

A small ResNet on real images of 20 classes, read at 32 pixels. That a killed run goes on with the
next examples of either loader is in test_kills.py.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.launching import command, fork_command, launch
from helpers.reference_run import newest_checkpoint, rows
from helpers.started import start_job
from helpers.tiny_images import write_images
from helpers.victims import processes_by_role

from lsgd.inputs.index import ImageIndex, index_file
from lsgd.prepare.indexing import index_folder
from lsgd.rules import sampler
from lsgd.strategy.recorded import load_orders

pytestmark = [
    pytest.mark.distributed, pytest.mark.data, pytest.mark.dali, pytest.mark.slow
]  # fmt: skip

TRAIN, VAL, K, N, SEED = 640, 40, 4, 16, 3
STEPS = TRAIN // (K * N)
BAND = 0.02
"""Of the loss between two loaders, whose pixels differ by a fifth of an 8-bit level on average."""
LOADERS = "dali", "torchvision"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """32 images of each class to train and 2 to validate."""
    root = tmp_path_factory.mktemp("tiny")
    write_images(root, test_data, train=TRAIN, val=VAL)
    return root


def words(root: Path, run: Path, loader: str) -> list[str]:
    return [
        "-m", "lsgd.train", "+recipe=bs256", "data=tiny_imagenet", f"data.root={root}",
        f"data.train_examples={TRAIN}", f"data.val_examples={VAL}", "data.classes=20",
        "data.image_size=32",
        f"inputs={loader}", "inputs.decoders=1", "model=small_resnet", f"workers={K}",
        f"worker_batch={N}", "workers_per_pass=4", "epochs=2", "schedule.milestones=[1]",
        "schedule.warmup=none", f"seed={SEED}", "log_steps=1", "checkpoint_steps=4", "device=cpu",
        f"run_dir={run}",
    ]  # fmt: skip


def alone(start: list[str]) -> subprocess.CompletedProcess[str]:
    """Make a run on one process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*fork_command(), *start], env=environment, capture_output=True, text=True, timeout=1800
    )


def apart(one: Path, other: Path) -> float:
    a, b = ({row["step"]: row["loss"] for row in rows(run, "train")} for run in (one, other))
    assert list(a) == list(b) == list(range(1, 2 * STEPS + 1))
    return max(abs(a[step] - b[step]) for step in a)


@pytest.fixture(scope="module")
def runs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole runs through both loaders, alone and on three processes."""
    folder = tmp_path_factory.mktemp("runs")
    for loader in LOADERS:
        done = alone(words(root, folder / f"{loader}1", loader))
        assert done.returncode == 0, done.stderr
        done = launch("forked", 3, *words(root, folder / f"{loader}3", loader))
        assert done.returncode == 0, done.stderr
        assert f"; {'DALI' if loader == 'dali' else 'torchvision'} " in done.stdout
    return folder


@pytest.mark.side_by_side
def test_one_loss_curve_through_both_loaders_on_1_and_3_processes(runs: Path) -> None:
    for loader in LOADERS:
        # The same pixels: only the order of sums differs.
        assert apart(runs / f"{loader}1", runs / f"{loader}3") < 1e-3
    for processes in (1, 3):
        assert apart(runs / f"dali{processes}", runs / f"torchvision{processes}") < BAND


# --- What fails while it runs ----------------------------------------------------------------


def later_file(root: Path) -> Path:
    """A file that the second of two processes needs in the middle of the second epoch."""
    order = sampler.epoch_order(TRAIN, seed=SEED, epoch=1)
    example = order[STEPS // 2 * K * N + K * N * 3 // 4]
    return Path(ImageIndex(root, index_file(root, "train")).path(example))


@pytest.fixture
def file(root: Path) -> Iterator[Path]:
    """The later file of the dataset, which is put right again."""
    file = later_file(root)
    content = file.read_bytes()
    yield file
    file.unlink(missing_ok=True)
    file.write_bytes(content)
    index_folder(root)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_file_that_cannot_be_read_ends_all_processes_with_a_sentence(
    root: Path, runs: Path, file: Path, tmp_path: Path, loader: str
) -> None:
    """Never a hang; the checkpoint is whole, and once it is put right the run goes on."""
    run, content = tmp_path / "run", file.read_bytes()
    os.truncate(file, 700)
    done = launch("forked", 2, *words(root, run, loader))
    assert done.returncode != 0
    text = done.stdout + done.stderr
    assert f"{file} cannot be read (it has 700 bytes" in text
    needed = re.search(r"needed in step (\d+) of epoch 1\b", text)
    assert needed, text
    assert "another process has exited" in text
    assert "Traceback" not in text
    assert 4 <= newest_checkpoint(run).step < int(needed[1])
    file.write_bytes(content)
    done = launch("forked", 2, *words(root, run, loader))
    assert done.returncode == 0, done.stderr
    assert apart(run, runs / f"{loader}1") < 1e-3


@pytest.mark.horovod
def test_the_end_of_a_process_that_decodes_ends_all_processes(root: Path, tmp_path: Path) -> None:
    start = command("horovod-gloo", 2, *words(root, tmp_path / "run", "torchvision"), "epochs=200")
    with start_job(start, tmp_path / "run") as job:
        job.until(lambda: job.step >= 4)
        processes_by_role(job.alive, "decoder")[0].kill()
        assert job.wait() != 0
        assert "a process that decodes images has died" in job.output_text
        job.wait_until_no_processes()


@pytest.mark.side_by_side
@pytest.mark.parametrize("loader", LOADERS)
def test_live_workers_hold_tickets_for_a_loader_that_looks_ahead(
    root: Path, tmp_path: Path, loader: str
) -> None:
    """The batches are read before they are computed with; the order says whose they are."""
    from lsgd.inputs.dali import (
        READ_AHEAD,
    )  # where DALI is not installed, this file is read all the same

    live, again = tmp_path / "live", tmp_path / "again"
    asynchronous = [
        "strategy=async", "workers=2", "checkpoint_steps=0", "workers_per_pass=1", "epochs=1",
        "schedule.milestones=[]",
    ]  # fmt: skip
    done = launch("forked", 3, *words(root, live, loader), *asynchronous, "strategy.order=live")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    orders = load_orders(live / "orders.npz")
    assert orders.ahead == {"torchvision": 2, "dali": READ_AHEAD + 3}[loader]
    order = f"strategy.order={live / 'orders.npz'}"
    done = alone([*words(root, again, loader), *asynchronous, order])
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(
        newest_checkpoint(live).model, newest_checkpoint(again).model, rtol=0, atol=0
    )
