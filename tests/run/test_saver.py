import errno
import os
import resource
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.symlinks import refuse_symlinks
from helpers.threaded import run_on_threads
from test_checkpoint import same, tiny

from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.errors import NotSavedError, PreemptedError
from lsgd.recipe.retention import newest_steps
from lsgd.run import checkpoint
from lsgd.run.metrics import Log
from lsgd.run.saver import CheckpointSaver


class Said(Log):
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[tuple[int, str]] = []

    def warn(self, step: int, text: str) -> None:
        self.warnings.append((step, text))


def steps(folder: Path) -> list[int]:
    paths = checkpoint.checkpoint_files(folder)
    return [checkpoint.decode_checkpoint(checkpoint.read(path), str(path)).step for path in paths]


def large(step: int) -> checkpoint.Checkpoint:
    """Of 80 KiB: two fit into what `ballast` leaves of the small disk, and a third one does not."""
    return replace(tiny(step), model={"w": torch.full((20_000,), float(step))})


@pytest.fixture
def ballast(small_disk: Path) -> Path:
    """What takes all but 192 KiB of it."""
    (small_disk / "ballast").write_bytes(bytes(2**22 - 192 * 1024))
    return small_disk / "ballast"


def test_only_the_first_process_saves(tmp_path: Path) -> None:
    def process(comm: Comm) -> None:
        folder = tmp_path / str(comm.rank)
        folder.mkdir()
        with CheckpointSaver(folder, comm, Log(), keep=newest_steps) as saver:
            saver.save(tiny(1))
            saver.save(tiny(2), milestone=True)

    run_on_threads(2, process)
    assert steps(tmp_path / "0") == [2, 1]
    assert list((tmp_path / "1").iterdir()) == []


def test_training_goes_on_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written is the state at the call; a second save waits for the first, and so does the
    end."""
    may_write, begun, order = threading.Event(), threading.Event(), []
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        begun.set()
        assert may_write.wait(200)
        order.append("written")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    made = tiny(1)
    with CheckpointSaver(tmp_path, SingleComm(), Log(), keep=newest_steps) as saver:
        saver.save(made)
        made.model["w"].fill_(99)
        made.optimizer["state"][0]["momentum_buffer"].fill_(99)
        made.optimizer["state"][0]["bounds"][0].fill_(99)
        made.optimizer["param_groups"][0]["lr"] = 99
        made.rates[99] = {"val_top1_error": 99.0}
        assert begun.wait(200)
        order.append("trained")
        threading.Timer(0.2, may_write.set).start()
        saver.save(tiny(2))
        assert order[:3] == ["trained", "written", "written"]
    assert steps(tmp_path) == [2, 1]
    first = checkpoint.decode_checkpoint(checkpoint.read(tmp_path / "checkpoint-1.pt"), "a")
    expected = {key: value for key, value in vars(tiny(1)).items() if key != "parts"}
    assert same({key: vars(first)[key] for key in expected}, expected)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(small_disk: Path, ballast: Path) -> None:
    log = Said()
    with CheckpointSaver(
        small_disk, SingleComm(), log, keep=partial(newest_steps, count=9)
    ) as saver:
        for step in (1, 2, 3):
            saver.save(large(step))
        assert log.warnings == []
        saver.save(large(4))
        # Said at the next boundary; that one has space again.
        ballast.unlink()
        saver.save(large(5))
    ((step, text),) = log.warnings[:1]
    assert step == 4
    assert f"step 3 could not be saved in {small_disk} (No space left on device" in text
    assert "it needs 0.1 MiB, 0.0 are free); the checkpoints before it are intact" in text
    assert steps(small_disk)[0] == 5
    assert steps(small_disk)[-2:] == [2, 1]
    assert not list(small_disk.glob("*.tmp"))


@pytest.mark.parametrize("leaving", [False, True])
def test_a_full_disk_at_the_end_is_an_error_on_all_processes(
    small_disk: Path, ballast: Path, leaving: bool
) -> None:
    """The run is not done, or could not leave, as it seems."""

    def process(comm: Comm) -> str:
        try:
            with CheckpointSaver(
                small_disk, comm, Log(), keep=partial(newest_steps, count=3)
            ) as saver:
                for step in (1, 2, 3):
                    saver.save(large(step))
                if leaving:
                    raise PreemptedError("saved")
        except NotSavedError as error:
            return str(error)
        raise AssertionError("not noticed")

    said = run_on_threads(2, process)
    assert said[0] == said[1]
    assert "step 3 could not be saved" in said[0]
    assert steps(small_disk) == [2, 1]
    assert NotSavedError.exit_code == 6


def test_any_other_failure_ends_all_processes_at_the_next_save(tmp_path: Path) -> None:
    """A disk that is gone does not come back."""

    def process(comm: Comm) -> str:
        try:
            with CheckpointSaver(
                tmp_path / "gone", comm, Log(), keep=partial(newest_steps, count=3)
            ) as saver:
                saver.save(tiny(1))
                saver.save(tiny(2))
                raise AssertionError("not noticed")
        except NotSavedError as error:
            return str(error)

    said = run_on_threads(2, process)
    assert said[0] == said[1]
    assert "step 1 could not be saved" in said[0]
    assert "No such file or directory" in said[0]


def test_a_drive_without_symlinks_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_symlinks(monkeypatch, errno.EOPNOTSUPP)
    for saves, at in ((3, 2), (1, 1)):
        log = Said()
        with CheckpointSaver(tmp_path, SingleComm(), log, keep=newest_steps) as saver:
            for step in range(1, saves + 1):
                saver.save(tiny(step))
        [(step, text)] = log.warnings
        assert (step, "refuses symbolic links" in text) == (at, True)
    assert steps(tmp_path)[0] == 3


def test_after_another_error_the_write_is_finished(tmp_path: Path) -> None:
    """Without the other processes, which may be gone; a failure is said and hides no error."""
    log = Said()

    def fail(step: int) -> None:
        with CheckpointSaver(
            tmp_path, SingleComm(), log, keep=partial(newest_steps, count=3)
        ) as saver:
            saver.save(large(step))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(1)
    assert steps(tmp_path) == [1]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ZeroDivisionError):
            fail(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "step 2 could not be saved" in log.warnings[0][1]
    assert steps(tmp_path) == [1]
