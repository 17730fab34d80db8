"""Who is started again, and what ends a job; its processes are played by threads."""

import os
import signal
import time
from pathlib import Path
from threading import Event

import pytest
from helpers.waiting import wait_until

from lsgd.supervise import STOP_SIGNALS, catch_stop_signals, restarts
from lsgd.supervise.restarts import run_with_restarts


class Played:
    """Processes that end as planned by (rank, life), and else once they are asked to."""

    def __init__(self, plan: dict[tuple[int, int], int], *, asked: int = -signal.SIGTERM) -> None:
        self.plan, self.asked = plan, asked
        self.started: list[tuple[int, int]] = []
        self.sent: list[int] = []
        self.over = Event()

    def run(self, rank: int, life: int) -> int:
        self.started.append((rank, life))
        if (code := self.plan.get((rank, life))) is not None:
            return code
        self.over.wait(900)
        return self.asked

    def send(self, number: int) -> None:
        self.sent.append(number)
        self.over.set()


KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("plan", "code", "last_lives"),
    [
        ({(0, 0): 0, (1, 0): 0, (2, 0): 0}, 0, [0, 0, 0]),
        # What one of lsgd's own codes says is not mended by a start of one process.
        *(({(2, 0): code}, code, [0, 0, 0]) for code in (2, 3, 4, 6, 75, 130)),
        ({(1, 0): KILLED, (1, 1): 4}, 4, [0, 1, 0]),
        ({(1, 0): 1, (1, 1): KILLED, (1, 2): 4}, 4, [0, 2, 0]),
        # One that has lost its peers, as it was stopped for long, comes back; process 0 does not.
        ({(1, 0): 5, (1, 1): 4}, 4, [0, 1, 0]),
        ({(0, 0): 5}, 5, [0, 0, 0]),
        # Without process 0 the others do not meet.
        ({(0, 0): KILLED}, 137, [0, 0, 0]),
        ({(0, 0): 1}, 1, [0, 0, 0]),
        # It would die for ever; deaths of different processes are not the same.
        ({(1, life): KILLED for life in range(9)}, 137, [0, 2, 0]),
        ({(1, life): 7 for life in range(9)}, 7, [0, 2, 0]),
        ({(1, 0): 1, (1, 1): 1, (2, 0): 1, (2, 1): 4}, 4, None),
    ],
)
def test_what_follows_an_end(
    plan: dict[tuple[int, int], int], code: int, last_lives: list[int] | None
) -> None:
    seats = Played(plan)
    assert run_with_restarts(seats, 3, ["true"], []) == code
    if last_lives:
        assert [max(life for rank, life in seats.started if rank == r) for r in range(3)] == (
            last_lives
        )
    assert len(seats.started) == len(set(seats.started))


def test_one_that_has_done_its_part_is_not_started_again() -> None:
    seats = Played({(1, 0): 0, (0, 0): 0})
    assert run_with_restarts(seats, 2, ["true"], []) == 0
    assert sorted(seats.started) == [(0, 0), (1, 0)]


def test_one_that_comes_back_when_the_run_is_over_keeps_nobody() -> None:
    """It would look for process 0 until it is killed."""

    class Over(Played):
        def run(self, rank: int, life: int) -> int:
            if rank == 0:
                wait_until(lambda: (1, 1) in self.started)
                return 0
            return super().run(rank, life)

    seats = Over({(1, 0): KILLED})
    assert run_with_restarts(seats, 2, ["true"], []) == 0
    assert seats.sent[0] == signal.SIGTERM


def test_a_job_that_gets_on_loses_any_number(tmp_path: Path) -> None:
    """Each death comes after a row that was written since the start of that process."""
    seats = Played({(1, life): KILLED for life in range(7)} | {(1, 7): 4})
    run = seats.run

    def run_and_write(rank: int, life: int) -> int:
        (tmp_path / "metrics.jsonl").touch()
        later = time.time() + 10 * life + 1
        os.utime(tmp_path / "metrics.jsonl", (later, later))
        return run(rank, life)

    seats.run = run_and_write  # type: ignore[method-assign]
    assert run_with_restarts(seats, 2, ["true", f"run_dir={tmp_path}"], []) == 4


def test_a_death_after_long_work_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "SOON", 0)
    seats = Played({(1, life): KILLED for life in range(7)} | {(1, 7): 4})
    assert run_with_restarts(seats, 2, ["true"], []) == 4


@pytest.mark.parametrize(("asked", "code"), [(75, 75), (-15, 143), (0, 0)])
def test_who_is_asked_to_end_asks_all(asked: int, code: int) -> None:
    """Once; what they make of it is the code of the job, and nothing is started again."""
    seats = Played({}, asked=asked)
    assert run_with_restarts(seats, 3, ["true"], [signal.SIGTERM]) == code
    assert sorted(seats.started) == [(0, 0), (1, 0), (2, 0)]
    assert seats.sent == [signal.SIGTERM, signal.SIGKILL]


def test_who_cannot_leave_does_not_keep_process_0_from_saving() -> None:
    """One that was stopped has lost the others, or is killed; it is not started again."""

    class Saves(Played):
        def run(self, rank: int, life: int) -> int:
            code = super().run(rank, life)
            if rank == 0:
                wait_until(lambda: self.ended == 2)
                return 75
            self.ended += 1
            return code

        ended = 0

    for asked in (5, KILLED):
        seats = Saves({}, asked=asked)
        assert run_with_restarts(seats, 3, ["true"], [signal.SIGTERM]) == 75
        assert len(seats.started) == 3


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        # A terminal that is closed, and a scheduler with two signals, let the job save.
        (["SIGHUP", "SIGHUP"], ["SIGHUP"]),
        (["SIGUSR1", "SIGTERM"], ["SIGUSR1"]),
        (["SIGINT", "SIGTERM"], ["SIGINT"]),
        # A person who does not want to wait.
        (["SIGINT", "SIGINT"], ["SIGINT", "SIGINT"]),
        (["SIGTERM", "SIGINT"], ["SIGTERM", "SIGINT"]),
    ],
)
def test_only_ctrl_c_is_a_second_signal(sent: list[str], received: list[str]) -> None:
    # The tests themselves may run under nohup, by which SIGHUP is ignored.
    before = {
        name: signal.signal(signal.Signals[name], signal.default_int_handler)
        for name in STOP_SIGNALS
    }
    try:
        caught = catch_stop_signals()
        for name in sent:
            signal.raise_signal(signal.Signals[name])
        assert caught == [signal.Signals[name] for name in received]
    finally:
        for name, handler in before.items():
            signal.signal(signal.Signals[name], handler)


def test_who_does_not_leave_is_killed() -> None:
    """At once by a second signal."""

    class Stubborn(Played):
        def send(self, number: int) -> None:
            self.sent.append(number)
            if number == signal.SIGKILL:
                self.over.set()

    seats = Stubborn({}, asked=KILLED)
    assert run_with_restarts(seats, 2, ["true"], [signal.SIGINT, signal.SIGINT]) == 130
    assert seats.sent[:2] == [signal.SIGTERM, signal.SIGTERM]
    seats = Stubborn({(1, 0): 3}, asked=KILLED)
    assert run_with_restarts(seats, 2, ["true"], [signal.SIGTERM], grace=0.1) == 3


def test_a_mistake_of_ours_ends_all() -> None:
    class Broken(Played):
        def run(self, rank: int, life: int) -> int:
            if rank:
                raise ZeroDivisionError
            return super().run(rank, life)

    with pytest.raises(ZeroDivisionError):
        run_with_restarts(Broken({}), 2, ["true"], [])
