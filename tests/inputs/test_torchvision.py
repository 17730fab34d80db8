"""What is torchvision's own: the processes that decode ahead."""

import io
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from helpers.folders import DATA, make_folder, opened, recipe
from helpers.passes import evaluating
from PIL import Image
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import lsgd.inputs
from lsgd.errors import InputFailed, Refused
from lsgd.inputs import open_inputs, torchvision
from lsgd.job.ending import end, tagged
from lsgd.rules.sampler import Pass


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("made") / "root")


def some_passes() -> Iterator[Pass]:
    for epoch, ids in ((2, [3, 0, 11, 6]), (2, [1, 2]), (3, [10, 5, 4, 7, 8, 9])):
        yield Pass(epoch, np.array(ids))


def decoders() -> set[int]:
    """The processes that decode; the fork server that has made them does not."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if not child.children()} - {
        child.pid for child in children if "resource_tracker" in " ".join(child.cmdline())
    }


@pytest.mark.slow
def test_processes_change_nothing_and_live_on(root: Path) -> None:
    """The same images in the same order, in the next epoch and in evaluations; starting processes
    anew for each costs seconds every time."""
    alone = opened(root, "torchvision")
    helped = open_inputs(
        recipe(root, "torchvision", DATA, "inputs.decoders=2"), torch.device("cpu")
    )
    assert helped.name == "torchvision in 2 processes"
    first: set[int] = set()
    for _ in range(2):
        for rounds in (
            zip(alone.train(some_passes()), helped.train(some_passes()), strict=True),
            zip(
                *(i.evaluation(evaluating(np.array([5, 1]))) for i in (alone, helped)), strict=True
            ),
        ):
            for (images, labels), (theirs, their_labels) in rounds:
                assert torch.equal(images, theirs)
                assert torch.equal(labels, their_labels)
        now = decoders()
        assert len(now) >= 2
        assert now == (first or now)
        first = now


def test_says_that_it_stands_in_for_dali(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DALI is not installed; whoever asked for torchvision knows."""
    monkeypatch.setattr(lsgd.inputs, "_has_dali", lambda: False)
    assert "DALI is faster: pip install" in opened(root, "auto").name
    assert "DALI" not in opened(root, "torchvision").name
    with pytest.raises(Refused, match=r"DALI is not installed; .*, or write inputs=torchvision"):
        opened(root, "dali")


@pytest.mark.slow
def test_a_bad_file_in_another_process_is_one_sentence(root: Path, tmp_path: Path) -> None:
    """And no traceback of that process."""
    bad = tmp_path / "copy" / "train" / "n01" / "odd.JPEG"
    make_folder(tmp_path / "copy")
    inputs = open_inputs(
        recipe(tmp_path / "copy", "torchvision", DATA, "inputs.decoders=1"), torch.device("cpu")
    )
    bad.write_bytes(b"no image")
    with pytest.raises(InputFailed, match=f"^{bad} cannot be read") as failure:
        list(inputs.train(some_passes()))
    assert "Traceback" not in str(failure.value)


@pytest.mark.slow
def test_a_killed_process_ends_the_run_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does when memory is short, also while it has nothing to hand over: this image
    is a pipe that nobody writes to. How often the trainer looks is counted, since torch does so
    every 5 seconds."""
    looks = []
    look = _MultiProcessingDataLoaderIter._try_get_data

    @wraps(look)
    def counted(*words: Any) -> Any:
        looks.append(words)
        return look(*words)

    monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_try_get_data", counted)
    monkeypatch.setattr("lsgd.inputs.torchvision.LOOK", 0.1)
    root = make_folder(tmp_path / "copy")
    image = root / "train" / "n01" / "odd.JPEG"
    inputs = open_inputs(
        recipe(root, "torchvision", DATA, "inputs.decoders=1"), torch.device("cpu")
    )
    image.unlink()
    os.mkfifo(image)
    batches = inputs.train(Pass(0, np.array([example])) for example in (0, 6))
    next(batches)
    looks.clear()

    def kill() -> None:
        for pid in decoders():
            os.kill(pid, signal.SIGKILL)

    timer = Timer(1.0, kill)
    timer.start()
    with pytest.raises(InputFailed, match=r"a process that decodes images has died .*decoders"):
        next(batches)
    assert len(looks) > 3


TRAINER = """
import sys, time
from pathlib import Path
import numpy as np, torch
from helpers.folders import DATA, recipe
from lsgd.inputs import open_inputs
from lsgd.rules.sampler import Pass

words = ["torchvision", DATA, "inputs.decoders=2"]
inputs = open_inputs(recipe(Path(sys.argv[1]), *words), torch.device("cpu"))
next(inputs.train(Pass(0, np.arange(12)) for _ in iter(int, 1)))
print(flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_nothing_outlives_a_killed_trainer(root: Path) -> None:
    """Neither the decoders nor what multiprocessing has started for them."""
    tag = ("LSGD_TEST_TAG", f"trainer-{os.getpid()}")
    environment = os.environ | dict([tag]) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TRAINER, str(root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout
        trainer.stdout.readline()
        assert len(tagged(tag)) == 5  # with two decoders, the fork server and the resource tracker
        trainer.kill()
    begin = time.monotonic()
    try:
        while left := tagged(tag):
            assert time.monotonic() - begin < 5, f"{len(left)} processes are left"
            time.sleep(0.05)
    finally:
        end(tag, 0)


@pytest.mark.slow
def test_decoders_do_not_import_torch_anew(root: Path, tmp_path: Path) -> None:
    """The trainer does, and once the fork server: seconds of a core for each decoder otherwise."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    command = [sys.executable, "-c", TRAINER, str(root)]
    with (
        (tmp_path / "imports").open("w") as imports,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=imports
        ) as trainer,
    ):
        assert trainer.stdout
        trainer.stdout.readline()
        trainer.kill()
    lines = (tmp_path / "imports").read_text().splitlines()
    assert sum(line.split("|")[-1].strip() == "torch" for line in lines) == 2


def test_a_pass_needs_few_open_files(root: Path) -> None:
    """One may carry thousands of images, and 1024 files is what a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, hard))
    try:
        ids = np.arange(60) % 12
        ((images, _),) = opened(root, "torchvision").train([Pass(2, ids)])
        assert len(images) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_batch_fits_where_an_equal_one_was() -> None:
    """Between tensors that stay; one that fits nowhere makes the process grow by itself."""
    np.empty(30 * 2**20, np.uint8)  # once freed, what is smaller comes from glibc's heap
    pixels = torch.zeros((32, 96, 96, 3), dtype=torch.uint8)
    batches, between = [], []
    for _ in range(20):
        batches.append(torchvision._floats(pixels))
        between.append(np.empty(2**20, np.uint8))
    assert all(batch.data_ptr() % 64 == 0 for batch in batches)
    places = {batch.data_ptr() for batch in batches}
    batches = []
    batches = [torchvision._floats(pixels) for _ in range(20)]
    # With torch's own memory at most 4.
    assert len(places & {batch.data_ptr() for batch in batches}) > 10


def blocks_of_a_decoder(report: Connection) -> None:
    """Count what PIL takes from malloc for images that are decoded for the second time."""
    torchvision._start_decoder(0)
    for _ in range(2):
        Image.core.reset_stats()
        for size in ((1200, 900), (700, 300), (2000, 2000), (500, 375)):
            file = io.BytesIO()
            Image.new("RGB", size).save(file, "JPEG")
            Image.open(file).convert("RGB").resize((224, 224))
    report.send(Image.core.get_stats())


@pytest.mark.slow
def test_a_decoder_keeps_the_memory_of_images() -> None:
    """Whatever their sizes: freed pieces of all sizes fit no other, and a decoder grew by half."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    with ours:
        process = context.Process(target=blocks_of_a_decoder, args=(theirs,))
        process.start()
        theirs.close()
        stats = ours.recv()
        process.join()
    assert stats["new_count"] > 8
    assert stats["allocated_blocks"] == 0
    assert stats["reused_blocks"] > 100
