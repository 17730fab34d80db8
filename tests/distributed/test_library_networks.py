"""Networks of torchvision and timm: one trajectory on any processes, passes and restarts, each."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers.capabilities import need
from helpers.launching import command, launch
from helpers.tiny_images import write_images
from helpers.undisturbed import assert_equal, rows

from lsgd.config import load_recipe
from lsgd.train import train

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow, pytest.mark.data]

NETWORKS = {
    "torchvision/resnet18": [],
    "timm/resnet18": [],
    # No BN, and blocks that are skipped by example.
    "timm/convnext_atto": ["model.options.drop_path_rate=0.2"],
    # Dropout, and no norm at all.
    "torchvision/squeezenet1_1": [],
}
# BN over the 2 images of a worker amplifies the last bit: with smaller images or deeper networks a
# run is chaos after 5 steps.
K, N, TRAIN, VAL = 8, 2, 340, 40
# 21 steps of 8 x 2, and the kept tail of 4: 2 workers have images in it.
STEPS = 22
LIMIT = 900.0
"""Seconds for what takes a minute or two on a machine that does nothing else."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, test_data: Path) -> Path:
    """The first images of the 20 classes of Tiny-ImageNet, as they are: of 64 x 64."""
    root = tmp_path_factory.mktemp("tiny")
    write_images(root, test_data, train=TRAIN, val=VAL)
    return root


def words(root: Path, run: Path, network: str, workers_per_pass: int) -> list[str]:
    return [
        "+recipe=bs256", "data=tiny_imagenet", f"data.root={root}", f"data.train_examples={TRAIN}",
        f"data.val_examples={VAL}", "data.classes=20", "data.image_size=64", f"model={network}",
        *NETWORKS[network], f"workers={K}", f"worker_batch={N}", "tail=keep", "epochs=1",
        "schedule.milestones=[]", "schedule.warmup=none", "schedule.reference_lr=0.01",
        "precision=float64", "inputs=torchvision", "inputs.decoders=1", "device=cpu", "log_steps=1",
        "checkpoint_steps=4", f"workers_per_pass={workers_per_pass}", f"run_dir={run}",
    ]  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_one_trajectory(root: Path, tmp_path: Path, network: str) -> None:
    """Alone in passes of 8; on two processes in passes of 4, killed; by three in passes of 1."""
    if network.startswith("timm/"):
        need("timm")
    alone, run = tmp_path / "alone", tmp_path / "run"
    train(load_recipe(words(root, alone, network, 8)))
    assert len(rows(alone, "train")) == STEPS
    with subprocess.Popen(
        command("forked", 2, "-m", "lsgd.train", *words(root, run, network, 4)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as first:
        deadline = time.monotonic() + LIMIT
        while len(rows(run, "train") if (run / "metrics.jsonl").exists() else []) < STEPS // 2:
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
    done = launch("forked", 3, "-m", "lsgd.train", *words(root, run, network, 1), limit=LIMIT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "resumes after step" in done.stdout + done.stderr
    assert_equal(run, alone)
