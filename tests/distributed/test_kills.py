"""A kill -9 of any process of a job, at any moment: nothing hangs, nothing is left, and the run
ends bit by bit as if undisturbed; by the same words again, or by `lsgd.supervise` by itself.

`make soak` makes them all, and `make test-all` four of them.
"""

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from helpers.folders import make_numbered
from helpers.launching import command, launch
from helpers.reference_run import assert_equal
from helpers.soak import FaultSeries
from helpers.started import Job, start_job
from helpers.victims import processes_by_role

from lsgd.run.rows import read_rows

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]

STEPS = 5
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
    ("bare", "horovod-gloo", "torchvision", "decoder", False),
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
    ("supervised", "horovod-mpi", "dali", "launcher", False),
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


def wait_for_moment(phase: str, job: Job, part: str, draw: random.Random) -> None:
    """Wait until the job is started, and then for a moment in this phase of the run."""
    for expected in ("rank 0", "rank 1", part):
        job.until(partial(lambda name: processes_by_role(job.alive, name), expected))
    delay = draw.uniform(0, PHASES[phase])
    if phase == "start":
        begin = time.monotonic()
        job.until(lambda: time.monotonic() > begin + delay or job.step)
        return
    epoch, step = draw.randrange(2), draw.randrange(1, STEPS)
    step = {"training": step, "evaluation": STEPS, "saving": 2 + step // 3 * 2}[phase]
    job.until(lambda: job.step >= epoch * STEPS + step)
    time.sleep(delay)


@pytest.mark.parametrize(("number", "how", "library", "loader", "part"), PARAMETERS)
def test_a_kill_changes_nothing(
    tmp_path: Path, root: Path, whole: Callable[[str], Path], soak: FaultSeries,
    number: int, how: str, library: str, loader: str, part: str,
) -> None:  # fmt: skip
    folder, undisturbed = tmp_path / "run", whole(loader)
    start = command(library, 2, *words(root, loader, folder))
    if how == "supervised":
        start = [sys.executable, "-m", "lsgd.supervise", "--", *start]
    # Each phase about as often as the others, whatever the seed.
    phase = random.Random(soak.seed).sample([*PHASES] * 5, len(CASES))[number]
    draw = random.Random(f"{soak.seed} {number}")
    with start_job(start, folder) as job:
        wait_for_moment(phase, job, part, draw)
        draw.choice(processes_by_role(job.alive, part)).kill()
        if how == "supervised":
            # What it starts again may be there already.
            present = job.alive - {job.process.pid}
            job.until(lambda: not present & job.alive)
        else:
            job.wait_until_no_processes()
        soak.note(f"- {how}, {library}, {loader}: {part} killed in {phase}, after step {job.step}")
        if how == "bare":
            assert job.wait() != 0
            # Forks do as well now: of two processes all libraries add the same two numbers.
            job.start(command("forked", 2, *words(root, loader, folder)))
        assert job.wait() == 0, job.output_text
        job.wait_until_no_processes()
    if how == "supervised":
        assert [row["event"] for row in read_rows(folder / "supervise.log")].count("start") == 2
    assert_equal(folder, undisturbed, within=0)
    soak.note("- nothing was left, and it ended bit by bit as the undisturbed run")
