"""What befalls a run while it runs: signals and kills, anywhere; the same words again end equal."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from helpers import sparse
from helpers.launching import AS_ROOT, command, launch
from helpers.soak import Soak
from helpers.undisturbed import LINGERING, STEPS, WORDS, assert_equal, rows, saved
from helpers.victims import ranks

from lsgd import config
from lsgd.run import checkpoint
from lsgd.train import train

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@contextmanager
def job(library: str, processes: int, folder: Path, *words: str) -> Iterator[subprocess.Popen]:
    """The run under a launcher, or alone; what it says is kept, and no process is left of it."""
    arguments = ["-m", "lsgd.train", *WORDS, LINGERING, *words, f"run_dir={folder}"]
    start = [sys.executable, *arguments]
    if library != "alone":
        start = command(library, processes, *arguments)
    with said_in(folder).open("a") as output:
        process = subprocess.Popen(
            start, env=os.environ | AS_ROOT, stdout=output, stderr=output, start_new_session=True
        )
    everybody = [psutil.Process(process.pid)]
    try:
        yield process
    finally:
        everybody += everybody[0].children(recursive=True) if process.poll() is None else []
        for each in everybody:
            if each.is_running():
                each.kill()
        process.wait(30)


def trainers(launcher: subprocess.Popen, library: str) -> dict[int, psutil.Process]:
    """The training processes by their rank."""
    process = psutil.Process(launcher.pid)
    return {0: process} if library == "alone" else ranks(process.children(recursive=True))


def wait_for(condition: Callable[[], object], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if condition():
            return
        assert process.poll() is None, "the run has ended"
        time.sleep(0.003)
    raise AssertionError("two minutes went by")


def said_in(folder: Path) -> Path:
    """Not in the folder above, which may be a full disk."""
    return folder.parent.parent / f"{folder.parent.name}.said"


def said(folder: Path) -> str:
    return said_in(folder).read_text()


@pytest.mark.parametrize(
    ("library", "number", "rank", "step"),
    [
        ("alone", signal.SIGUSR1, 0, 7),
        ("torch", signal.SIGTERM, 1, 3),
        pytest.param("horovod-gloo", signal.SIGUSR2, 1, 2 * STEPS, marks=pytest.mark.horovod),
    ],
)
def test_a_signal_to_one_process_makes_all_leave_after_the_same_step(
    tmp_path: Path, undisturbed: Path, library: str, number: int, rank: int, step: int
) -> None:
    """In training, or, after the last step of an epoch, in the evaluation; and again, while it
    leaves."""
    run = tmp_path / "run"
    with job(library, 2, run) as process:
        wait_for(lambda: len(rows(run, "train")) >= step, process)
        victim = trainers(process, library)[rank]
        victim.send_signal(number)
        time.sleep(0.05)
        if victim.is_running():
            victim.send_signal(number)
        begin = time.monotonic()
        code = process.wait(60)
        seconds = time.monotonic() - begin
    left = saved(run)
    assert f"lsgd: told to leave by a signal: saved after step {left.step}" in said(run)
    assert said(run).count("told to leave") == 1, said(run)
    assert code == 75 if library == "alone" else code != 0
    if library == "torch":
        assert said(run).count("exitcode  : 75") == 1 or "exitcode: 75" in said(run), said(run)
    assert seconds < 15
    if step % STEPS == 0:
        # In the middle of the evaluation, which is not counted as made.
        assert (left.step, len(left.rates)) == (step, step // STEPS - 1)
    else:
        assert step < left.step <= step + 8
    assert [row["step"] for row in rows(run, "train")] == list(range(1, left.step + 1))

    train(config.load_recipe([*WORDS, f"run_dir={run}"]))
    assert_equal(run, undisturbed)


def kill_one(
    library: str, processes: int, run: Path, phase: str, draw: random.Random
) -> tuple[int, float]:
    """Start the run and kill -9 one of its processes; returns its rank, and how long the rest of
    the job then took to end."""
    at = len(rows(run, "train"))
    with job(library, processes, run) as process:
        if phase == "start-up":
            wait_for(lambda: len(trainers(process, library)) == processes, process)
            time.sleep(draw.uniform(0, 3))
        elif phase == "evaluation":
            wait_for(lambda: len(rows(run, "train")) >= at // STEPS * STEPS + STEPS, process)
            time.sleep(draw.uniform(0, 0.2))
        else:
            step = at + draw.randint(1, 4)
            step += step % 2 if phase == "save" else 0
            wait_for(lambda: len(rows(run, "train")) >= min(step, 4 * STEPS), process)
            time.sleep(draw.uniform(0, 0.01 if phase == "save" else 0.1))
        alive = trainers(process, library)
        rank = 0 if phase == "save" else draw.choice(sorted(alive) or [0])
        if rank in alive:
            alive[rank].kill()
        begin = time.monotonic()
        process.wait(60)
        return rank, time.monotonic() - begin


def kills_end_equal(
    library: str, processes: int, run: Path, undisturbed: Path, phases: list[str], soak: Soak
) -> None:
    draw = random.Random(soak.seed)
    for phase in phases:
        rank, seconds = kill_one(library, processes, run, phase, draw)
        whole = [saved_step(path) for path in checkpoint.files(run)] if run.exists() else []
        soak.note(
            f"- {library}, {processes} processes: rank {rank} killed in {phase}, the job ended in "
            f"{seconds:.1f} s, whole checkpoints of steps {whole}"
        )
        assert seconds < 15
    train(config.load_recipe([*WORDS, f"run_dir={run}"]))
    assert_equal(run, undisturbed)
    soak.note("- ended equal to the undisturbed run")


def saved_step(path: Path) -> int:
    return checkpoint.load(checkpoint.read(path), str(path)).step


@pytest.mark.horovod
@pytest.mark.soak
def test_killed_in_every_phase_it_ends_equal(tmp_path: Path, undisturbed: Path, soak: Soak) -> None:
    """In every run of the tests test_kills.py has each phase, and the test below three kills."""
    phases = ["start-up", "evaluation", "save"]
    kills_end_equal("horovod-gloo", 2, tmp_path / "run", undisturbed, phases, soak)


def test_a_truncated_newest_checkpoint_costs_its_steps(
    tmp_path: Path, undisturbed: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, symlinks=True)
    newest = checkpoint.files(run)[0]
    os.truncate(newest, newest.stat().st_size // 2)
    train(config.load_recipe([*WORDS, f"run_dir={run}"]))
    sentence = f"{newest} is damaged or no checkpoint of lsgd"
    assert f"warning: {sentence}" in capsys.readouterr().out
    ((step, text),) = [(row["step"], row["text"]) for row in rows(run, "warning")]
    assert step == 4 * STEPS - 2
    assert sentence in text
    assert_equal(run, undisturbed)


def test_every_drop_of_the_lr_has_a_milestone(undisturbed: Path) -> None:
    assert [path.name for path in checkpoint.files(undisturbed)] == [
        "checkpoint-20.pt", "checkpoint-18.pt", "milestone-15.pt"
    ]  # fmt: skip


def fill(folder: Path) -> Path:
    """Leave no space on the disk of this folder; returns the file that takes it.

    To be called again, since a save under way may free some: it removes an older checkpoint.
    """
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_on_a_full_disk_training_goes_on(small_disk: Path, undisturbed: Path) -> None:
    """Full to the end, the last state cannot be saved and the exit code says so; freed, and
    filled for a while, the run ends as if nothing had been, with all its rows."""
    run = small_disk / "run"
    with job("alone", 1, run) as process:
        wait_for(lambda: len(rows(run, "train")) >= 4, process)
        wait_for(lambda: fill(small_disk) and "training goes on" in said(run), process)
        assert process.wait(100) == 6
    assert f"could not be saved in {run} (No space left on device: it needs 0." in said(run)
    assert "training goes on" in said(run)
    assert said(run).count("lsgd: step 20 could not be saved") == 1
    assert "Traceback" not in said(run)
    assert 2 <= saved(run).step <= 6

    fill(small_disk).unlink()
    at, before = len(rows(run, "train")), said(run).count("training goes on")
    with job("alone", 1, run) as process:
        wait_for(lambda: len(rows(run, "train")) > at, process)
        wait_for(lambda: fill(small_disk) and said(run).count("training goes on") > before, process)
        fill(small_disk).unlink()
        assert process.wait(100) == 0
    assert_equal(run, undisturbed)


@pytest.mark.parametrize(
    ("processes", "every", "stops"),
    [
        (3, 1, ["save 10", "step 18"]),
        (1, 3, ["leave 8", "save 10", "evaluate 15", "step 18"]),
        (3, 3, ["save 10", "evaluate 15", "step 18"]),
    ],
)
def test_evaluated_after_some_epochs_it_survives_between_and_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int, every: int,
    stops: list[str],
) -> None:  # fmt: skip
    """Of four epochs only the third and fourth are evaluated, or all; see helpers/sparse.py."""
    words = [*WORDS, "data.val_examples=200", f"evaluation.every={every}"]
    whole, run = tmp_path / "undisturbed", tmp_path / "disturbed"
    train(config.load_recipe([*words, f"run_dir={whole}"]))
    epochs = rows(whole, "epoch")
    assert [row["epoch"] for row in epochs] == [1, 2, 3, 4]
    evaluated = [row["epoch"] for row in epochs if "val_top1_error" in row]
    assert evaluated == ([3, 4] if every == 3 else [1, 2, 3, 4])
    said = capsys.readouterr().out
    assert ("epoch 1: not evaluated (train " in said) == (1 not in evaluated)
    assert "epoch 4: top-1 error " in said
    # The last row of an epoch and of a step that each of them leaves.
    left = {"leave 8": (5, 10), "save 10": (10, 10), "evaluate 15": (10, 15), "step 18": (15, 18)}
    for stop in stops:
        start = [sparse.__file__, *stop.split(), *words, f"run_dir={run}"]
        if processes > 1:
            code = launch("forked", processes, *start).returncode
        else:
            code = subprocess.run([sys.executable, *start], timeout=100).returncode
        assert code in ([1] if processes > 1 else [75] if stop == "leave 8" else [-signal.SIGKILL])
        assert tuple(rows(run, kind)[-1]["step"] for kind in ("epoch", "train")) == left[stop]
        if stop == "leave 8":
            assert (saved(run).step, list(saved(run).rates)) == (10, [1])
    train(config.load_recipe([*words, f"run_dir={run}"]))
    assert_equal(run, whole)


@pytest.mark.parametrize(
    ("processes", "stops"), [(1, ["save 10", "evaluate 15"]), (3, ["save 15"])]
)
def test_a_run_that_stops_at_its_target_is_killed_between_and_on_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int, stops: list[str]
) -> None:
    """Of four epochs the third is the first that is evaluated, and has the target."""
    goal = ["metric.epochs_to={top1_error:100}", "metric.stop=true", "evaluation.every=3"]
    words = [*WORDS, "data.val_examples=200", *goal]
    whole, run = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert train(config.load_recipe([*words, f"run_dir={whole}"])) == 3
    assert "3 epochs to top-1 error 100.00 % (at the first evaluation" in capsys.readouterr().out
    epochs = rows(whole, "epoch")
    assert ["val_top1_error" in row for row in epochs] == [False, False, True]
    for stop in stops:
        start = [sparse.__file__, *stop.split(), *words, f"run_dir={run}"]
        if processes > 1:
            code = launch("forked", processes, *start).returncode
        else:
            code = subprocess.run([sys.executable, *start], timeout=100).returncode
        assert code in (1, -signal.SIGKILL)
    assert train(config.load_recipe([*words, f"run_dir={run}"])) == 3
    assert_equal(run, whole)
    assert train(config.load_recipe([*words, f"run_dir={run}"])) == 3
    assert len(rows(run, "epoch")) == 3
    assert "it is complete: nothing is left to train" in capsys.readouterr().out


POISONED = """
import os, sys, torch
from lsgd.inputs import synthetic
from lsgd.train import main

class Poisoned(synthetic.SyntheticInputs):
    def train(self, passes):
        for each, (images, labels) in zip(passes := list(passes), super().train(passes)):
            poison = each.epoch == 1 and each.step == 2 and os.environ["RANK"] == "2"
            yield images * (torch.nan if poison else 1), labels

synthetic.SyntheticInputs = Poisoned
sys.exit(main(sys.argv[1:]))
"""


def test_a_gradient_that_is_no_number_on_one_of_four_ends_all_of_them(
    tmp_path: Path, undisturbed: Path
) -> None:
    """With one message, and nothing saved that it has touched."""
    (tmp_path / "poisoned.py").write_text(POISONED)
    run = tmp_path / "run"
    done = launch("forked", 4, str(tmp_path / "poisoned.py"), *WORDS, f"run_dir={run}")
    assert done.returncode != 0
    assert done.stderr.count("lsgd: the loss or a gradient of step 7 is not finite") == 1
    assert done.stderr.count("lsgd: ") == 1
    assert "has ended with exit code 3" in done.stderr
    assert saved(run).step == 6
    assert all(value.isfinite().all() for value in saved(run).model.values())
