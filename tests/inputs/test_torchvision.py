"""What is torchvision's own: the processes that decode ahead."""

import gc
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer

import numpy as np
import psutil
import pytest
import torch
from helpers.folders import DATA, make_folder, open_folder_inputs, recipe
from helpers.micro_batches import evaluation_micro_batches
from helpers.waiting import read_line
from PIL import Image

import lsgd.inputs
from lsgd.errors import InputFailedError, UsageError
from lsgd.inputs import Inputs, open_inputs, prefetch_limit, torchvision
from lsgd.job.ending import end_tagged
from lsgd.job.preemption import SIGNALS
from lsgd.job.system import tagged_pids
from lsgd.prepare.indexing import index_folder
from lsgd.rules.sampler import MicroBatch

PACKAGE = Path(lsgd.inputs.__file__).parent.parent


def some_passes() -> Iterator[MicroBatch]:
    for epoch, ids in ((2, [3, 0, 11, 6]), (2, [1, 2]), (3, [10, 5, 4, 7, 8, 9])):
        yield MicroBatch(epoch, np.array(ids))


def helped(root: Path, *words: str) -> Inputs:
    """The loader, with processes that decode for it."""
    return open_inputs(recipe(root, "torchvision", DATA, *words), torch.device("cpu"))


def decoders() -> set[int]:
    """The processes that decode for this one, but for those of loaders that nothing leads to."""
    gc.collect()  # a refusal that a test has kept holds its frames, and they hold a loader
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if "lsgd.inputs.decoder" in child.cmdline()}


@pytest.mark.slow
def test_processes_change_nothing_and_live_on(root: Path) -> None:
    """The same images in the same order, in the next epoch and in evaluations; starting processes
    anew for each costs seconds every time."""
    alone = open_folder_inputs(root, "torchvision")
    ours = helped(root, "inputs.decoders=2")
    assert ours.name == "torchvision in 2 processes"
    first: set[int] = set()
    for _ in range(2):
        for rounds in (
            zip(alone.train(some_passes()), ours.train(some_passes()), strict=True),
            zip(
                *(i.evaluation(evaluation_micro_batches(np.array([5, 1]))) for i in (alone, ours)),
                strict=True,
            ),
        ):
            for (images, labels), (theirs, their_labels) in rounds:
                assert torch.equal(images, theirs)
                assert torch.equal(labels, their_labels)
        now = decoders()
        assert len(now) == 2
        assert now == (first or now)
        first = now


def test_a_pass_of_any_size_follows_any_other(root: Path) -> None:
    """In the same memory, which grows; and what was handed over stays as it was."""
    passes = [MicroBatch(epoch, np.arange(size)) for epoch, size in enumerate((1, 5, 2, 12, 3))]
    ours = list(helped(root, "inputs.decoders=1", "inputs.prefetch=1").train(passes))
    for (images, labels), (expected, their_labels) in zip(
        ours, open_folder_inputs(root, "torchvision").train(passes), strict=True
    ):
        assert torch.equal(images, expected)
        assert torch.equal(labels, their_labels)


@pytest.mark.slow
def test_a_round_that_is_given_up_is_not_in_the_next(root: Path) -> None:
    """Nor does a round ask for more passes than it says, or later than it may."""
    asked = []
    words = ("inputs.decoders=2", "inputs.prefetch=3")
    inputs = helped(root, *words)
    endless = (MicroBatch(0, np.array([number % 12])) for number in iter(lambda: len(asked), -1))
    given_up = inputs.train(asked.append(each) or each for each in endless)
    for taken in range(1, 4):
        next(given_up)
        assert len(asked) == taken + prefetch_limit(recipe(root, "torchvision", DATA, *words))
    ((images, labels),) = inputs.evaluation(evaluation_micro_batches(np.array([5, 1])))
    ((expected, their_labels),) = open_folder_inputs(root, "torchvision").evaluation(
        evaluation_micro_batches(np.array([5, 1]))
    )
    assert torch.equal(images, expected)
    assert torch.equal(labels, their_labels)


def test_says_that_it_stands_in_for_dali(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where DALI is not installed; whoever asked for torchvision knows."""
    monkeypatch.setattr(lsgd.inputs, "is_dali_installed", lambda: False)
    assert "DALI is faster: " in open_folder_inputs(root, "auto").name
    assert "DALI" not in open_folder_inputs(root, "torchvision").name
    with pytest.raises(UsageError, match=r"DALI .* run .*\[dali\]', or write inputs=torch"):
        open_folder_inputs(root, "dali")


def test_a_bad_file_in_another_process_is_one_sentence(root: Path, tmp_path: Path) -> None:
    """And no traceback of that process."""
    bad = tmp_path / "copy" / "train" / "n01" / "odd.JPEG"
    make_folder(tmp_path / "copy")
    inputs = helped(tmp_path / "copy", "inputs.decoders=1")
    bad.write_bytes(b"no image")
    with pytest.raises(InputFailedError, match=f"^{bad} cannot be read") as failure:
        list(inputs.train(some_passes()))
    assert "Traceback" not in str(failure.value)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_run_at_once(root: Path, killed: int) -> None:
    """As the kernel does when memory is short, also while it has nothing to hand over, and another
    is waited for: both are stopped here, and one of them has been asked."""
    inputs = helped(root, "inputs.decoders=2")
    stopped = sorted(decoders())
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    killer = Timer(0.2, os.kill, (stopped[killed], signal.SIGKILL))
    killer.start()
    with pytest.raises(
        InputFailedError, match=r"^a process that decodes images has died \(SIGKILL\)"
    ):
        next(inputs.train([MicroBatch(0, np.array([0]))]))
    killer.cancel()


@pytest.mark.slow
def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    """Nobody waits for what somebody may write into it."""
    root = make_folder(tmp_path / "copy")
    inputs = helped(root, "inputs.decoders=1")
    image = root / "train" / "n01" / "odd.JPEG"
    image.unlink()
    os.mkfifo(image)
    with pytest.raises(
        InputFailedError, match=f"^{image} cannot be read .it is not a regular file"
    ):
        next(inputs.train([MicroBatch(0, np.array([6]))]))
    with pytest.raises(UsageError, match=f"{image} is not a regular file; run .*lsgd.prepare"):
        open_folder_inputs(root, "torchvision")


TRAINER = """
import sys, time
from pathlib import Path
import numpy as np, torch
from helpers.folders import DATA, recipe
from lsgd.inputs import open_inputs
from lsgd.rules.sampler import MicroBatch

words = ["torchvision", DATA, "inputs.decoders=2"]
inputs = open_inputs(recipe(Path(sys.argv[1]), *words), torch.device("cpu"))
next(inputs.train(MicroBatch(0, np.arange(12)) for _ in iter(int, 1)))
print(flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_nothing_outlives_a_killed_trainer(root: Path) -> None:
    """The decoders end with it."""
    tag = ("LSGD_TEST_TAG", f"trainer-{os.getpid()}")
    environment = os.environ | dict([tag]) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TRAINER, str(root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as trainer:
        read_line(trainer)
        assert len(tagged_pids(tag)) == 3  # with two decoders
        trainer.kill()
    begin = time.monotonic()
    try:
        while left := tagged_pids(tag):
            assert time.monotonic() - begin < 300, f"{len(left)} processes are left"
            time.sleep(0.05)
    finally:
        end_tagged(tag, 0)


@pytest.mark.slow
def test_a_decoder_has_no_torch_and_blocks_signals(root: Path) -> None:
    """Nor more threads than the one that decodes and the one that listens. Signals are those of a
    launcher that signals every process there is, and Ctrl-C."""
    inputs = helped(root, "inputs.decoders=2")
    list(inputs.train(some_passes()))
    for pid in decoders():
        libraries = Path(f"/proc/{pid}/maps").read_text()
        assert re.search(r"/numpy/.*\.so$", libraries, re.MULTILINE)
        assert "torch" not in libraries
        assert psutil.Process(pid).num_threads() == 2
        status = Path(f"/proc/{pid}/status").read_text()
        blocked = re.search(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE)
        assert blocked
        for number in (*SIGNALS, signal.SIGINT):
            assert int(blocked[1], 16) >> number - 1 & 1
    assert len(decoders()) == 2
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert not before & {*SIGNALS, signal.SIGINT}


def test_a_decoder_that_fails_as_nobody_expected_exits() -> None:
    """Or the trainer would wait for its answer for good."""
    ours, theirs = socket.socketpair()
    trainer, descriptor = Connection(ours.detach()), theirs.fileno()
    command = [sys.executable, "-m", "lsgd.inputs.decoder", str(descriptor)]
    decoder = subprocess.Popen(command, pass_fds=[descriptor], stderr=subprocess.PIPE)
    try:
        for message in (None, (None, 0)):  # no files, and so an error of Python's own
            trainer.send(message)
        _, said = decoder.communicate(timeout=200)
    finally:
        decoder.kill()
        decoder.wait()
        trainer.close()
        theirs.close()
    assert decoder.returncode == 1
    assert b"AttributeError" in said


ELSEWHERE = """
import sys
sys.path[:0] = {path}
{trainer}
"""


@pytest.mark.slow
def test_decoders_find_what_the_trainer_has_found(root: Path, tmp_path: Path) -> None:
    """Where it has changed Python's path itself, before another lsgd that is installed."""
    own = tmp_path / "lsgd"
    own.mkdir()
    mark = "import os\nos.write(1, b'found\\n')\n"
    (own / "__init__.py").write_text(f"__path__.append({str(PACKAGE)!r})\n{mark}")
    program = ELSEWHERE.format(path=[str(tmp_path), *sys.path], trainer=TRAINER)
    command = [sys.executable, "-I", "-c", program, str(root)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command, env=environment | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE
    ) as trainer:
        lines = [read_line(trainer) for _ in range(4)]
        trainer.kill()
    assert lines == [*3 * [b"found\n"], b"\n"]


@pytest.mark.slow
def test_a_loader_that_is_given_up_leaves_nothing(root: Path) -> None:
    """Neither processes nor open files."""
    gc.collect()  # or files that earlier tests have left would be closed meanwhile
    open_files = len(os.listdir("/proc/self/fd"))
    inputs = helped(root, "inputs.decoders=2")
    list(inputs.train(some_passes()))
    del inputs
    assert not decoders()
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_pass_needs_few_open_files(root: Path) -> None:
    """One may carry thousands of images, and 1024 files is what a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 20, hard))
    try:
        ids = np.arange(60) % 12
        ((images, _),) = open_folder_inputs(root, "torchvision").train([MicroBatch(2, ids)])
        assert len(images) == 60
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_batch_fits_where_an_equal_one_was() -> None:
    """Between tensors that stay; one that fits nowhere makes the process grow by itself."""
    np.empty(30 * 2**20, np.uint8)  # once freed, what is smaller comes from glibc's heap
    pixels = np.zeros((32, 96, 96, 3), np.uint8)
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


DECODER = """
import sys
sys.argv[0] = "-m"  # as `python -m lsgd.inputs.decoder` begins
import gc, os, socket, threading
from multiprocessing.connection import Connection
from pathlib import Path
import numpy as np
from PIL import Image
from helpers.folders import DATA
from lsgd.inputs import decoder
from lsgd.inputs.index import ImageIndex, index_file
from lsgd.rules.sampler import MicroBatch

root = Path(sys.argv[1])
ours, theirs = socket.socketpair()
decoding = decoder.main, (theirs.detach(), os.memfd_create("pixels"))
threading.Thread(target=decoding[0], args=decoding[1], daemon=True).start()
index = ImageIndex(root, index_file(root, "train"))
trainer = Connection(ours.detach())
trainer.send(decoder.ImageFiles(DATA, {"train": index, "val": index}, seed=0))
for _ in range(2):
    Image.core.reset_stats()
    trainer.send((MicroBatch(0, np.arange(4)), 0))
    trainer.recv()
print(Image.core.get_stats(), gc.isenabled())
"""


@pytest.mark.slow
def test_a_decoder_keeps_the_memory_of_images(tmp_path: Path) -> None:
    """Whatever their sizes: freed pieces of all sizes fit no other, and a decoder grew by half.
    Python's own garbage is looked for, as the imports are over."""
    for split in ("train", "val"):
        (tmp_path / split / "n00").mkdir(parents=True)
        for size in ((1200, 900), (700, 300), (2000, 2000), (500, 375)):
            Image.new("RGB", size).save(tmp_path / split / "n00" / f"{size[0]}.JPEG")
    index_folder(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DECODER, str(tmp_path)]
    said = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, timeout=1000
    )
    stats = {name: int(count) for name, count in re.findall(r"'(\w+)': (\d+)", str(said.stdout))}
    assert stats["new_count"] > 8
    assert stats["allocated_blocks"] == 0
    assert stats["reused_blocks"] > 100
    assert said.stdout.endswith(b"True\n")
