"""A kill -9 of any process of a job, at any moment: nothing hangs, nothing is left, and the run
ends bit by bit as if undisturbed; by the same words again, or by `lsgd.supervise` by itself.

`make soak` makes them all, and `make test-all` six of them.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from helpers.folders import make_numbered
from helpers.launching import AS_ROOT, command, launch
from helpers.soak import Soak
from helpers.undisturbed import assert_equal, rows
from helpers.victims import victims

from lsgd.job.ending import end, tagged
from lsgd.run.rows import read_rows

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STEPS = 5
LEFT, HANGS = 5.0, 15.0
"""Seconds after a kill in which all processes are gone that were there: where each that is ready to
run has a core, since Python takes a CPU second to end; and anywhere."""
PATIENCE = 300.0
"""Seconds in which a run of a few seconds ends on a machine that has other work."""
PHASES = {"start": 3.0, "training": 0.1, "evaluation": 0.2, "saving": 0.02}
"""In which a run is killed, with the seconds after their beginning among which one is drawn."""
MARKS = {
    "torch": [],
    "horovod-gloo": [pytest.mark.horovod],
    "horovod-mpi": [pytest.mark.horovod, pytest.mark.mpi],
    "torchvision": [],
    "dali": [pytest.mark.dali],
}
# DALI decodes in threads of the trainer, so that there is no decoder to kill. Those that are True
# are made in every run of the tests.
CASES = [
    ("bare", "torch", "torchvision", "launcher", True),
    ("bare", "horovod-gloo", "torchvision", "decoder", True),
    ("bare", "horovod-mpi", "dali", "rank 0", True),
    ("bare", "torch", "dali", "rank 1", False),
    ("bare", "horovod-gloo", "dali", "launcher", False),
    ("bare", "horovod-mpi", "torchvision", "launcher", False),
    ("supervised", "torch", "torchvision", "decoder", True),
    ("supervised", "torch", "torchvision", "rank 0", False),
    ("supervised", "torch", "dali", "launcher", False),
    ("supervised", "torch", "dali", "rank 0", False),
    ("supervised", "horovod-gloo", "torchvision", "launcher", False),
    ("supervised", "horovod-gloo", "torchvision", "decoder", False),
    ("supervised", "horovod-gloo", "dali", "rank 1", True),
    ("supervised", "horovod-gloo", "dali", "rank 0", False),
    ("supervised", "horovod-mpi", "torchvision", "decoder", False),
    ("supervised", "horovod-mpi", "torchvision", "rank 1", False),
    ("supervised", "horovod-mpi", "dali", "rank 1", False),
    ("supervised", "horovod-mpi", "dali", "launcher", True),
]
PARAMETERS = [
    pytest.param(
        number,
        *(how, library, loader, part),
        marks=[*MARKS[library], *MARKS[loader], pytest.mark.soak(everywhere=everywhere)],
        id=f"{how}-{library}-{loader}-{part}".replace(" ", ""),
    )
    for number, (how, library, loader, part, everywhere) in enumerate(CASES)
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_numbered(tmp_path_factory.mktemp("made") / "root", 40, (32, 32))


def words(root: Path, loader: str, folder: Path) -> list[str]:
    """4 epochs of 5 steps, a checkpoint after every second; two decoders per process."""
    return [
        "-m", "lsgd.train", "+recipe=bs256", "data=tiny_imagenet", f"data.root={root}",
        "data.train_examples=40", "data.val_examples=40", "data.classes=40", "data.image_size=28",
        "device=cpu", f"inputs={loader}", "inputs.decoders=2", "model=small_resnet", "workers=2",
        "worker_batch=4", "epochs=4", "schedule.milestones=[3]", "schedule.warmup_epochs=1",
        "val_batch=2", "log_steps=1", "checkpoint_steps=2", f"run_dir={folder}",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The undisturbed run of a loader, made when it is first needed.

    On two processes all libraries add the same two numbers.
    """
    folders: dict[str, Path] = {}

    def of(loader: str) -> Path:
        if loader not in folders:
            folders[loader] = tmp_path_factory.mktemp("whole") / loader
            done = launch("forked", 2, *words(root, loader, folders[loader]))
            assert done.returncode == 0, done.stderr
        return folders[loader]

    return of


class Job:
    """A job whose processes are known by a tag, and what it says."""

    def __init__(self, start: list[str], folder: Path) -> None:
        self.tag = ("LSGD_TEST_TAG", str(folder))
        self.output = folder.with_suffix(".txt")
        self.start(start)

    def start(self, start: list[str]) -> None:
        """Start it, or start it again."""
        environment = os.environ | AS_ROOT | dict([self.tag]) | {"OMP_NUM_THREADS": "1"}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                start, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def wait_for(self, condition: Callable[[], object], seconds: float) -> float:
        """Wait until it is so, no longer than this; returns the seconds that it took."""
        begin = time.monotonic()
        while not condition():
            late = time.monotonic() - begin > seconds
            assert not late, f"{len(tagged(self.tag))} processes are left: {self.said()}"
            self.process.poll()  # without which it would stay as one that has ended
            time.sleep(0.005)
        return time.monotonic() - begin

    def said(self) -> str:
        """What the job has printed."""
        return self.output.read_text(errors="replace")


@contextmanager
def started(start: list[str], folder: Path) -> Iterator[Job]:
    """The job, of which nothing is left behind."""
    job = Job(start, folder)
    try:
        yield job
    finally:
        end(job.tag, 0)
        job.process.wait()


def wait_for_moment(phase: str, job: Job, folder: Path, part: str, draw: random.Random) -> None:
    """Wait until the job is started, and then for a moment in this phase of the run."""
    for expected in ("rank 0", "rank 1", part):
        job.wait_for(partial(lambda name: victims(tagged(job.tag), name), expected), PATIENCE)
    delay = draw.uniform(0, PHASES[phase])
    if phase == "start":
        until = time.monotonic() + delay
        job.wait_for(lambda: time.monotonic() > until or rows(folder, "train"), PATIENCE)
        return
    epoch, step = draw.randrange(2), draw.randrange(1, STEPS)
    step = {"training": step, "evaluation": STEPS, "saving": 2 + step // 3 * 2}[phase]
    job.wait_for(lambda: len(rows(folder, "train")) >= epoch * STEPS + step, PATIENCE)
    time.sleep(delay)


@pytest.mark.parametrize(("number", "how", "library", "loader", "part"), PARAMETERS)
def test_a_kill_changes_nothing(
    tmp_path: Path, root: Path, whole: Callable[[str], Path], soak: Soak,
    number: int, how: str, library: str, loader: str, part: str,
) -> None:  # fmt: skip
    folder, undisturbed = tmp_path / "run", whole(loader)
    start = command(library, 2, *words(root, loader, folder))
    if how == "supervised":
        start = [sys.executable, "-m", "lsgd.supervise", "--", *start]
    # Each phase about as often as the others, whatever the seed.
    phase = random.Random(soak.seed).sample([*PHASES] * 5, len(CASES))[number]
    draw = random.Random(f"{soak.seed} {number}")
    with started(start, folder) as job:
        wait_for_moment(phase, job, folder, part, draw)
        began, load = time.monotonic(), os.getloadavg()[0]
        draw.choice(victims(tagged(job.tag), part)).kill()
        if how == "supervised":
            # What it starts again may be there already.
            present = tagged(job.tag) - {job.process.pid}
            job.wait_for(lambda: not present & tagged(job.tag), HANGS)
        else:
            job.wait_for(lambda: not tagged(job.tag), HANGS)
        left = time.monotonic() - began
        step = max((row["step"] for row in rows(folder, "train")), default=0)
        if how == "bare":
            assert job.process.wait() != 0
            job.start(start)
        ended = job.wait_for(lambda: job.process.poll() is not None, PATIENCE)
        soak.note(
            f"- {how}, {library}, {loader}: {part} killed in {phase}, after step {step}: nothing "
            f"left after {left:.1f} s at a load of {load:.1f}, ended after {ended:.1f} s more"
        )
        assert job.process.returncode == 0, job.said()
        job.wait_for(lambda: not tagged(job.tag), HANGS)
    if how == "supervised":
        assert [row["event"] for row in read_rows(folder / "supervise.log")].count("start") == 2
    assert_equal(folder, undisturbed, within=0)
    soak.note("- ended bit by bit as the undisturbed run")
    assert left < LEFT * max(1, load / (os.cpu_count() or 1))
