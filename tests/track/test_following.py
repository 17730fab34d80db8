"""How a run is sent: in order, nothing missing and nothing twice, whatever the tracker does."""

import fcntl
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event, Thread

import pytest
from helpers.refusals import refusal
from helpers.run_folders import write_run

from lsgd.run import trackers
from lsgd.run.trackers import log_of
from lsgd.track import __main__ as command
from lsgd.track import sending
from lsgd.track.about import About, Conclusion
from lsgd.track.steps import TrackedStep

WORDS = ("+recipe=digits", "epochs=4", "schedule.milestones=[]", "schedule.warmup=none")
STEPS = 5


class Memory:
    """A tracker in this process, which may break down."""

    where = "in memory"

    def __init__(self) -> None:
        self.has: list[TrackedStep] = []
        self.conclusions: list[Conclusion] = []
        self.failures: list[str] = []
        """Where it is to fail next: `open`, or `sent` once it has the first of some steps."""

    def open(self, name: str, about: About) -> "Memory":
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

    def end(self, conclusion: Conclusion) -> None:
        self.conclusions.append(conclusion)

    @property
    def numbers(self) -> list[int]:
        return [step.number for step in self.has]


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """In place of MLflow, which need not be installed."""
    memory = Memory()
    monkeypatch.setattr(sending, "open_tracker", memory.open)
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
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
    assert sending.send(folder, "mlflow") == f"{folder}: 2 steps sent, in memory"
    add(folder, 3)
    assert ": 1 step sent" in sending.send(folder, "mlflow")
    assert "0 steps sent" in sending.send(folder, "mlflow")
    assert tracker.numbers == [5, 10, 15]
    assert [conclusion.text for conclusion in tracker.conclusions] == [
        "2 of 4 epochs done", "3 of 4 epochs done", "3 of 4 epochs done"
    ]  # fmt: skip


def test_what_a_resumed_run_makes_again_is_not_sent_again(folder: Path, tracker: Memory) -> None:
    sending.send(folder, "mlflow")
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert "0 steps sent" in sending.send(folder, "mlflow")
    add(folder, 2, 3)
    sending.send(folder, "mlflow")
    assert tracker.numbers == [5, 10, 15]


def test_a_tracker_that_is_down_is_a_sentence(
    folder: Path, tracker: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker.failures = ["open"]
    says = refusal(command.main, capsys, str(folder), "--to", "mlflow")
    assert "could not be sent to mlflow (open)" in says
    assert command.main([str(folder), "--to", "mlflow"]) == 0
    assert tracker.numbers == [5, 10]


def test_one_process_at_a_time_sends_a_run(
    folder: Path, tracker: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two would both send what the tracker does not have yet."""
    with log_of(folder, "mlflow").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        says = refusal(command.main, capsys, str(folder), "--to", "mlflow")
    assert "another process sends" in says
    assert not tracker.has


def test_words_that_make_no_sense(
    folder: Path, tracker: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no run to send: it is not a folder" in refusal(
        command.main, capsys, str(folder / "b"), "--to", "mlflow"
    )
    both = refusal(command.main, capsys, str(folder), str(folder), "--to", "mlflow", "--follow")
    assert "one run" in both
    assert "--to: a does not exist; " in refusal(command.main, capsys, str(folder), "--to", "a")


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The end of the run that is followed; without the clock that ends this process."""
    event = Event()
    monkeypatch.setattr(sending, "_input_is_over", lambda to: event)
    monkeypatch.setattr(sending.os, "nice", lambda increment: 0)
    monkeypatch.setattr(sending, "POLL", 0.01)
    monkeypatch.setattr(sending, "FIRST_PAUSE", 0.01)
    yield event
    event.set()


def test_a_run_is_followed_to_its_last_row(
    folder: Path, tracker: Memory, over: Event, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever fails meanwhile, also once it has been taken up."""
    tracker.failures = ["open", "open", "sent", "open"]
    follower = Thread(target=sending.follow, args=(folder, "mlflow"))
    follower.start()
    while tracker.numbers != [5, 10]:
        follower.join(0.01)
        assert follower.is_alive()
    tracker.failures = ["sent"]
    add(folder, 3, 4)
    over.set()
    follower.join(20)
    assert not follower.is_alive()
    assert tracker.numbers == [5, 10, 15, 20]
    assert tracker.has[-1].values["outcome"] == 7.5
    assert [conclusion.finished for conclusion in tracker.conclusions] == [True]
    lines = [re.sub(r"^\S+ \S+  ", "", line) for line in capsys.readouterr().out.splitlines()]
    down = "mlflow cannot be reached and is tried again and again"
    assert lines[:3] == [f"{down} (open)", "mlflow is back: in memory", f"{down} (sent)"]
    assert lines[-1] == "mlflow has everything"


def test_rows_written_before_the_end_are_sent(folder: Path, tracker: Memory, over: Event) -> None:
    """Also those of the very last moment."""
    over.set()
    sending.follow(folder, "mlflow")
    assert tracker.numbers == [5, 10]
