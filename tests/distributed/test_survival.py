"""What befalls a run while it runs: signals, kills, full disks; the same words again end equal."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers import sparse
from helpers.composed import compose_recipe
from helpers.launching import command, fork_command, launch
from helpers.reference_run import WORDS, assert_equal, newest_checkpoint, rows
from helpers.started import start_job

from lsgd.run import lock
from lsgd.train import train

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side, pytest.mark.slow]


def stopping(run: Path, *steps: int) -> list[str]:
    """The words of a run that stops after these steps until it is let go on."""
    return [sparse.__file__, "stop", ",".join(map(str, steps)), *WORDS, f"run_dir={run}"]


@pytest.mark.parametrize(
    ("library", "number", "rank"),
    [
        ("alone", signal.SIGUSR1, 0),
        ("torch", signal.SIGTERM, 1),
        pytest.param("horovod-gloo", signal.SIGUSR2, 1, marks=pytest.mark.horovod),
    ],
)
def test_a_signal_to_one_process_makes_all_leave_after_the_same_step(
    tmp_path: Path, undisturbed: Path, library: str, number: int, rank: int
) -> None:
    """And a second one changes nothing."""
    run, alone = tmp_path / "run", library == "alone"
    arguments = stopping(run, 3)
    start = [sys.executable, *arguments] if alone else command(library, 2, *arguments)
    with start_job(start, run) as job:
        job.until(lambda: job.step == 3)
        processes = {0: psutil.Process(job.process.pid)} if alone else job.ranks()
        with job.stopped(processes[0], 3):
            for _ in range(2):
                processes[rank].send_signal(number)
        code = job.wait()
        left = newest_checkpoint(run)
        assert f"lsgd: preempted by a signal: saved after step {left.step}" in job.output_text
        assert job.output_text.count("preempted by a signal") == 1, job.output_text
        assert code == 75 if alone else code != 0
        if library == "torch":
            assert (
                job.output_text.count("exitcode  : 75") == 1 or "exitcode: 75" in job.output_text
            ), job.output_text
    assert 3 <= left.step <= 6
    assert [row["step"] for row in rows(run, "train")] == list(range(1, left.step + 1))
    train(compose_recipe(*WORDS, f"run_dir={run}"))
    assert_equal(run, undisturbed)


def test_the_second_job_is_told_who_the_first_is_and_the_next_begins_at_once(
    tmp_path: Path, undisturbed: Path
) -> None:
    """In one run folder are never two jobs at a time, and one follows the other."""
    run = tmp_path / "run"
    words = ["-m", "lsgd.train", *WORDS, f"run_dir={run}"]
    with start_job([sys.executable, *stopping(run, 4)], run) as first:
        first.until(lambda: first.step == 4)
        second = subprocess.run(
            [*fork_command(), *words], capture_output=True, text=True, timeout=1800
        )
        assert second.returncode == 2
        written = f"lsgd: run_dir={run} is being written by another job (process"
        assert f"{written} {first.process.pid} " in second.stderr
        assert second.stderr.count("\n") == 1
        first.process.kill()
    assert (run / lock.FILE).exists()
    third = launch("forked", 2, *words)
    assert third.returncode == 0, third.stderr
    assert "resumes after step" in third.stdout
    assert_equal(run, undisturbed)
    assert not (run / lock.FILE).exists()


def fill(folder: Path) -> Path:
    """Leave no space on the disk of this folder; returns the file that takes it."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_on_a_full_disk_training_goes_on(
    small_disk: Path, tmp_path: Path, undisturbed: Path
) -> None:
    """Full to the end, the last state cannot be saved and the exit code says so; freed, and
    filled for a while, the run ends as if nothing had been, with all its rows."""
    run, failed = small_disk / "run", "training continues"
    start = [sys.executable, *stopping(run, 4, 6, 8)]
    with start_job(start, run, output=tmp_path / "first.txt") as job:
        for step in (4, 6, 8):  # a save under way may free some: it removes an older checkpoint
            with job.stopped(psutil.Process(job.process.pid), step):
                fill(small_disk)
        assert job.wait() == 6
        said = job.output_text
    assert failed in said
    assert f"could not be saved in {run} (No space left on device: it needs 0." in said
    assert said.count("lsgd: step 20 could not be saved") == 1
    assert "Traceback" not in said
    assert 2 <= newest_checkpoint(run).step <= 6

    fill(small_disk).unlink()
    start = [sys.executable, *stopping(run, 8, 12)]
    with start_job(start, run, output=tmp_path / "second.txt") as job:
        with job.stopped(psutil.Process(job.process.pid), 8):
            fill(small_disk)
        with job.stopped(psutil.Process(job.process.pid), 12):
            assert failed in job.output_text
            fill(small_disk).unlink()
        assert job.wait() == 0
    assert_equal(run, undisturbed)


ROWS_LEFT = {"leave 8": (5, 10), "save 10": (10, 10), "evaluate 15": (10, 15), "step 18": (15, 18)}
"""The last rows of an epoch and of a step that each disturbance of helpers/sparse.py leaves."""


def disturb(processes: int, stop: str, words: list[str], run: Path) -> None:
    done = launch("forked", processes, sparse.__file__, *stop.split(), *words, f"run_dir={run}")
    assert done.returncode == 1
    leaves = stop.startswith("leave")
    assert ("with exit code 75" if leaves else "process 0 has ended with SIGKILL") in done.stderr


@pytest.mark.parametrize(
    ("processes", "stops"),
    [
        (1, ["leave 8", "save 10", "evaluate 15", "step 18"]),
        (2, ["save 10", "evaluate 15", "step 18"]),
    ],
)
def test_evaluated_after_some_epochs_it_survives_between_and_on_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int, stops: list[str]
) -> None:
    """Of four epochs only the third and fourth are evaluated; see helpers/sparse.py."""
    words = [*WORDS, "data.val_examples=200", "evaluation.every=3"]
    whole, run = tmp_path / "undisturbed", tmp_path / "disturbed"
    train(compose_recipe(*words, f"run_dir={whole}"))
    epochs = rows(whole, "epoch")
    assert [row["epoch"] for row in epochs] == [1, 2, 3, 4]
    assert [row["epoch"] for row in epochs if "val_top1_error" in row] == [3, 4]
    said = capsys.readouterr().out
    assert "epoch 1: not evaluated (train " in said
    assert "epoch 4: top-1 error " in said
    for stop in stops:
        disturb(processes, stop, words, run)
        assert tuple(rows(run, kind)[-1]["step"] for kind in ("epoch", "train")) == ROWS_LEFT[stop]
        if stop == "leave 8":
            assert (newest_checkpoint(run).step, list(newest_checkpoint(run).rates)) == (10, [1])
    train(compose_recipe(*words, f"run_dir={run}"))
    assert_equal(run, whole)


def test_told_to_leave_in_an_evaluation_it_is_not_counted_as_made(
    tmp_path: Path, undisturbed: Path
) -> None:
    disturb(2, "leave-evaluation 10", WORDS, tmp_path)
    assert (newest_checkpoint(tmp_path).step, list(newest_checkpoint(tmp_path).rates)) == (10, [1])
    train(compose_recipe(*WORDS, f"run_dir={tmp_path}"))
    assert_equal(tmp_path, undisturbed)


@pytest.mark.parametrize(
    ("processes", "stops"), [(1, ["save 10", "evaluate 15"]), (2, ["save 15"])]
)
def test_a_run_that_stops_at_its_target_is_killed_between_and_on_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int, stops: list[str]
) -> None:
    """Of four epochs the third is the first that is evaluated, and has the target."""
    goal = ["metric.epochs_to={top1_error:100}", "metric.stop=true", "evaluation.every=3"]
    words = [*WORDS, "data.val_examples=200", *goal]
    whole, run = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert train(compose_recipe(*words, f"run_dir={whole}")) == 3
    assert "3 epochs to top-1 error 100.00 % (at the first evaluation" in capsys.readouterr().out
    assert ["val_top1_error" in row for row in rows(whole, "epoch")] == [False, False, True]
    for stop in stops:
        disturb(processes, stop, words, run)
    for _ in range(2):  # the second time nothing is left to train
        assert train(compose_recipe(*words, f"run_dir={run}")) == 3
        assert_equal(run, whole)
    assert "it has ended early, as the recipe says; nothing is left to" in capsys.readouterr().out


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


def test_a_gradient_that_is_no_number_on_one_of_four_ends_all_of_them(tmp_path: Path) -> None:
    """With one message, and nothing saved that it has touched."""
    (tmp_path / "poisoned.py").write_text(POISONED)
    run = tmp_path / "run"
    done = launch("forked", 4, str(tmp_path / "poisoned.py"), *WORDS, f"run_dir={run}")
    assert done.returncode != 0
    assert done.stderr.count("lsgd: the loss or a gradient of step 7 is not finite") == 1
    assert done.stderr.count("lsgd: ") == 1
    assert "has ended with exit code 3" in done.stderr
    assert newest_checkpoint(run).step == 6
    assert all(value.isfinite().all() for value in newest_checkpoint(run).model.values())
