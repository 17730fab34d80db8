"""How a run is sent: in order, nothing missing and nothing twice, whatever the tracker does."""

import errno
import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers.run_folders import write_run
from helpers.usage_errors import usage_error

from lsgd.errors import UsageError
from lsgd.run import trackers
from lsgd.run.read import read_run
from lsgd.run.trackers import log_of
from lsgd.track import __main__ as command
from lsgd.track import upload
from lsgd.track.run_info import RunOutcome, TrackedRunInfo, tracked_run_info
from lsgd.track.steps import TrackedStep
from lsgd.track.upload import open_tracker

WORDS = ("+recipe=digits", "epochs=4", "schedule.milestones=[]", "schedule.warmup=none")
STEPS = 5


class Memory:
    """A tracker in this process, which may break down."""

    address = "in memory"

    def __init__(self) -> None:
        self.has: list[TrackedStep] = []
        self.conclusions: list[RunOutcome] = []
        self.failures: list[str] = []
        """Where it is to fail next: `open`, or `sent` once it has the first of some steps."""

    def open(self, name: str, about: TrackedRunInfo) -> "Memory":
        assert (name, about.name) == ("mlflow", about.folder.name)
        if self.failures[:1] == ["open"]:
            raise ConnectionError(self.failures.pop(0))
        return self

    def last_step(self) -> int:
        return max((step.number for step in self.has), default=0)

    def send(self, steps: Sequence[TrackedStep]) -> None:
        if self.failures[:1] == ["sent"]:
            self.has.append(steps[0])
            raise TimeoutError(self.failures.pop(0))
        self.has += steps

    def finish(self, conclusion: RunOutcome) -> None:
        self.conclusions.append(conclusion)

    @property
    def numbers(self) -> list[int]:
        return [step.number for step in self.has]


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """In place of MLflow, which need not be installed."""
    memory = Memory()
    monkeypatch.setattr(upload, "open_tracker", memory.open)
    monkeypatch.setattr(trackers, "is_installed", lambda name: True)
    return memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "a", *WORDS, errors=[9.0, 8.0])


def add(folder: Path, *epochs: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        for epoch in epochs:
            row = {"kind": "epoch", "step": STEPS * epoch, "epoch": epoch, "val_top1_error": 7.0}
            file.write(json.dumps(row) + "\n")


def test_the_same_words_send_what_is_missing(folder: Path, tracker: Memory) -> None:
    assert upload.send_run(folder, "mlflow") == f"{folder}: 2 steps sent, in memory"
    add(folder, 3)
    assert ": 1 step sent" in upload.send_run(folder, "mlflow")
    assert "0 steps sent" in upload.send_run(folder, "mlflow")
    assert tracker.numbers == [5, 10, 15]
    assert [conclusion.text for conclusion in tracker.conclusions] == [
        "2 of 4 epochs done", "3 of 4 epochs done", "3 of 4 epochs done"
    ]  # fmt: skip


def test_what_a_resumed_run_makes_again_is_not_sent_again(folder: Path, tracker: Memory) -> None:
    upload.send_run(folder, "mlflow")
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert "0 steps sent" in upload.send_run(folder, "mlflow")
    add(folder, 2, 3)
    upload.send_run(folder, "mlflow")
    assert tracker.numbers == [5, 10, 15]


def test_a_folder_without_a_run_stops_no_other(
    folder: Path, tracker: Memory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    runs = [str(tmp_path / "empty"), str(folder)]
    assert command.main([*runs, "--to", "mlflow"]) == 2
    told = capsys.readouterr()
    assert told.out == f"{folder}: 2 steps sent, in memory\n"
    refused, count = told.err.splitlines()
    assert refused.startswith(f"lsgd: {runs[0]} ")
    assert count == "lsgd: 1 of 2 runs were not sent"
    assert tracker.numbers == [5, 10]


def test_a_tracker_that_is_down_is_a_sentence(
    folder: Path, tracker: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker.failures = ["open"]
    says = usage_error(command.main, capsys, str(folder), "--to", "mlflow")
    assert "could not be sent to mlflow (open)" in says
    assert command.main([str(folder), "--to", "mlflow"]) == 0
    assert tracker.numbers == [5, 10]


def test_no_sentence_has_the_password_of_a_tracker(
    folder: Path,
    tracker: Memory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor has what its library says, or the proxy's."""
    tracker.address = "http://me:secret@host/#/runs/1"

    def down(name: str, about: TrackedRunInfo) -> Memory:
        raise ConnectionError(
            "Max retries exceeded with url: http://me:secret@host/api (Caused by …"
        )

    with monkeypatch.context() as context:
        context.setattr(upload, "open_tracker", down)
        said = usage_error(command.main, capsys, str(folder), "--to", "mlflow")
    assert "http://me:***@host/api" in said
    assert command.main([str(folder), "--to", "mlflow"]) == 0
    assert "http://me:***@host/#/runs/1" in capsys.readouterr().out


def test_one_process_at_a_time_sends_a_run(
    folder: Path, tracker: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two would both send what the tracker does not have yet."""
    with log_of(folder, "mlflow").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        says = usage_error(command.main, capsys, str(folder), "--to", "mlflow")
    assert "another process is sending" in says
    assert not tracker.has


def test_on_a_drive_without_locks_the_run_is_to_be_copied(
    folder: Path,
    tracker: Memory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = Mock(side_effect=OSError(errno.EOPNOTSUPP, "Operation not supported"))
    monkeypatch.setattr(fcntl, "flock", none)
    says = usage_error(command.main, capsys, str(folder), "--to", "mlflow")
    assert "on a drive without file locks" in says
    assert "copy the run folder to a drive with locks" in says
    assert not tracker.has


def test_words_that_make_no_sense(
    folder: Path, tracker: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no run to send: it is not a folder" in usage_error(
        command.main, capsys, str(folder / "b"), "--to", "mlflow"
    )
    both = usage_error(command.main, capsys, str(folder), str(folder), "--to", "mlflow", "--follow")
    assert "one run" in both
    assert "--to: a does not exist; " in usage_error(command.main, capsys, str(folder), "--to", "a")


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The end of the run that is followed; without the clock that ends this process."""
    event = Event()
    monkeypatch.setattr(upload, "_stdin_closed_event", lambda to: event)
    monkeypatch.setattr(upload.os, "nice", lambda increment: 0)
    monkeypatch.setattr(upload, "POLL", 0.01)
    monkeypatch.setattr(upload, "FIRST_PAUSE", 0.01)
    yield event
    event.set()


def test_a_run_is_followed_to_its_last_row(
    folder: Path, tracker: Memory, over: Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever fails meanwhile, also once it has been taken up."""
    tracker.failures = ["open", "open", "sent", "open"]
    follower = Thread(target=upload.follow_run, args=(folder, "mlflow"))
    follower.start()
    while tracker.numbers != [5, 10]:
        follower.join(0.01)
        assert follower.is_alive()
    tracker.failures = ["sent"]
    add(folder, 3, 4)
    over.set()
    follower.join(200)
    assert not follower.is_alive()
    assert tracker.numbers == [5, 10, 15, 20]
    assert tracker.has[-1].values["outcome"] == 7.5
    assert [conclusion.finished for conclusion in tracker.conclusions] == [True]
    lines = [re.sub(r"^\S+ \S+  ", "", line) for line in capsys.readouterr().out.splitlines()]
    down = "mlflow cannot be reached; retrying"
    assert lines[:3] == [
        f"{down} (open)",
        "mlflow can be reached again: in memory",
        f"{down} (sent)",
    ]
    assert lines[-1] == "mlflow has everything"


def test_rows_written_before_the_end_are_sent(folder: Path, tracker: Memory, over: Event) -> None:
    """Also those of the very last moment."""
    over.set()
    upload.follow_run(folder, "mlflow")
    assert tracker.numbers == [5, 10]


@pytest.mark.wandb
@pytest.mark.parametrize("mode", ["disabled", "offline"])
def test_what_is_disabled_sends_nothing_and_says_so(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is written then is kept."""
    import wandb

    class Settled:
        disabled, offline, dir, starting_step = mode == "disabled", True, "kept/files", 0
        summary: dict[str, str] = {}  # noqa: RUF012

        def log(self, *_: object, **__: object) -> None: ...
        def finish(self, **_: object) -> None: ...

    monkeypatch.setattr(wandb, "init", lambda **_: Settled())
    folder = write_run(tmp_path / "run", *WORDS, errors=[9.0])
    if mode == "disabled":
        with pytest.raises(
            UsageError, match=r"nothing would be sent; write WANDB_MODE=offline"
        ) as why:
            upload.send_run(folder, "wandb")
        assert "once it can be reached" not in str(why.value)
    else:
        assert upload.send_run(folder, "wandb").endswith("sent, kept")


@pytest.mark.parametrize("known", [True, False])
def test_a_user_without_a_home_has_one_for_trackers(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom the system does not know, as in a container: libraries look there for their settings."""

    def home() -> Path:
        if "HOME" not in os.environ:
            raise RuntimeError("Could not determine home directory.")
        return Path(os.environ["HOME"])

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setenv("HOME", str(tmp_path / "own"))
    if not known:
        monkeypatch.delenv("HOME")
    run = read_run(write_run(tmp_path / "run", *WORDS))
    library = SimpleNamespace(MlflowRun=lambda _: os.environ["HOME"])
    monkeypatch.setitem(sys.modules, "lsgd.track.mlflow", library)
    home_of_library = open_tracker("mlflow", tracked_run_info(run, "mlflow"))
    assert home_of_library == str(tmp_path / ("own" if known else "run"))
