"""Who may write in a run folder: the first, until it ends, however it ends and wherever it is."""

import errno
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.waiting import read_line, wait_until

from lsgd.errors import UsageError
from lsgd.job import system
from lsgd.run import lock
from lsgd.run.lock import hold_lock

HOLDS = """
import sys, time
from pathlib import Path
from lsgd.run import lock
lock.BEAT = 0.05
with lock.hold_lock(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(1000)
"""


class Clock:
    """A clock that only sleep turns, and what happens meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[float], object] = lambda now: None

    time = staticmethod(time.time)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self.now)

    def until_held(self, folder: Path) -> float:
        """The seconds until the folder is free."""
        begin = self.now
        with hold_lock(folder):
            return self.now - begin

    def was_watched(self, folder: Path) -> bool:
        """Whether one is let in after it was watched, and not before."""
        return lock.WATCH < self.until_held(folder) < lock.WATCH + lock.SETTLING + 3 * lock.POLL


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lock, "time", clock)
    return clock


@contextmanager
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the folder."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], **pipes)
    try:
        read_line(process)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=900)


def is_refused(folder: Path, pid: int | str = "") -> bool:
    with (
        pytest.raises(UsageError, match=rf"{folder} is being written .*process {pid}"),
        hold_lock(folder),
    ):
        pass
    return True


def left_by_another_machine(folder: Path, **fields: object) -> Path:
    """The lock file of a process on another machine."""
    there = {"host": "elsewhere", "boot": "b", "pid": 7, "since": "2026-01-02 03:04:05 +0000"}
    path = folder / lock.FILE
    path.write_text(json.dumps(there | fields))
    return path


def ticking(path: Path, times: Callable[[float], float]) -> Callable[[float], None]:
    """Touches the file every few seconds by a clock that shows these times."""

    def touch(now: float) -> None:
        beat = times(now // lock.BEAT * lock.BEAT)
        os.utime(path, (beat, beat))

    touch(0)
    return touch


def test_the_second_is_refused_and_told_who_the_first_is(tmp_path: Path, clock: Clock) -> None:
    """As after Ctrl-Z too: it will go on to write."""
    with holder(tmp_path) as first:
        for number in (signal.SIGCONT, signal.SIGSTOP):
            first.send_signal(number)
            with pytest.raises(UsageError) as refusal, hold_lock(tmp_path):
                pass
            who = f"(process {first.pid} on {platform.node()}, since 20"
            assert who in str(refusal.value)
            assert "write another run_dir" in str(refusal.value)
            assert "\n" not in str(refusal.value)


def test_it_leaves_the_folder_as_it_was(tmp_path: Path, clock: Clock) -> None:
    with hold_lock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]
        with pytest.raises(UsageError), hold_lock(tmp_path):
            pass
        assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]
    assert list(tmp_path.iterdir()) == []


def test_after_a_kill_the_next_begins_at_once(tmp_path: Path, clock: Clock) -> None:
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
        assert (tmp_path / lock.FILE).exists()
        assert clock.until_held(tmp_path) == 0


def test_a_process_that_is_still_dying_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    with holder(tmp_path) as first:

        def die(now: float) -> None:
            first.kill()
            first.wait()

        clock.meanwhile = die
        assert clock.until_held(tmp_path) == lock.POLL


CLOCKS = {
    "right": lambda seconds: time.time() + seconds,
    "hours ahead": lambda seconds: time.time() + 9 * 3600 + seconds,
    "years behind": lambda seconds: 1000 + seconds,
    "going backwards": lambda seconds: time.time() - 3600 * seconds,
}


@pytest.mark.parametrize("name", CLOCKS)
def test_on_another_machine_who_moves_is_alive(tmp_path: Path, name: str, clock: Clock) -> None:
    """And who does not is dead."""
    path = left_by_another_machine(tmp_path)
    clock.meanwhile = ticking(path, CLOCKS[name])
    assert is_refused(tmp_path, "7 on elsewhere, since 2026-01-02 03:04:05")
    assert path.exists()
    clock.meanwhile = lambda now: None
    assert clock.was_watched(tmp_path)


@pytest.mark.parametrize("fields", [{"host": platform.node()}, {"boot": system.boot_id()}])
def test_a_machine_of_the_same_name_is_another(
    tmp_path: Path, fields: dict[str, str], clock: Clock
) -> None:
    """As is this one before a restart."""
    path = left_by_another_machine(tmp_path, **fields)
    clock.meanwhile = ticking(path, CLOCKS["right"])
    assert is_refused(tmp_path, 7)


def test_a_network_drive_that_keeps_the_lock_of_a_dead_machine(
    tmp_path: Path, clock: Clock
) -> None:
    with left_by_another_machine(tmp_path).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert clock.was_watched(tmp_path)


def test_a_drive_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Whoever moves is alive; who does not, also on this machine, is dead."""
    none = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", none)
    here = {"host": platform.node(), "boot": system.boot_id()}
    clock.meanwhile = ticking(left_by_another_machine(tmp_path, **here), CLOCKS["right"])
    assert is_refused(tmp_path, 7)
    clock.meanwhile = lambda now: None
    assert clock.was_watched(tmp_path)


def test_a_copied_folder_is_another(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "run").mkdir()
    with hold_lock(tmp_path / "run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        assert clock.until_held(tmp_path / "copy") == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "a"}'])
def test_a_file_that_was_cut_short_blocks_nobody(
    tmp_path: Path, content: str, clock: Clock
) -> None:
    (tmp_path / lock.FILE).write_text(content)
    assert clock.was_watched(tmp_path)


@pytest.mark.parametrize("dead", ["here", "elsewhere", "never"])
def test_of_several_that_come_at_once_one_is_let_in(
    tmp_path: Path, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of this machine, as they settle among themselves."""
    for name, seconds in {"BEAT": 0.2, "WATCH": 1.0, "DYING": 0.4, "POLL": 0.02}.items():
        monkeypatch.setattr(lock, name, seconds)
    if dead == "here":
        with holder(tmp_path) as first:
            first.kill()
    elif dead == "elsewhere":
        left_by_another_machine(tmp_path)
    inside: list[int] = []
    most: list[int] = []
    refused: list[int] = []

    def come(number: int) -> bool:
        try:
            with hold_lock(tmp_path):
                inside.append(number)
                most.append(len(inside))
                wait_until(lambda: len(inside) + len(refused) >= 4)
                most.append(len(inside))
                inside.remove(number)
                return True
        except UsageError:
            refused.append(number)
            return False

    with ThreadPoolExecutor(4) as pool:
        let_in = list(pool.map(come, range(4)))
    assert sum(let_in) == max(most) == 1
    assert list(tmp_path.iterdir()) == []


def test_who_passed_for_dead_writes_no_more(tmp_path: Path) -> None:
    """It was stopped on another machine, and then went on: two would write there."""
    with holder(tmp_path) as first:
        first.send_signal(signal.SIGSTOP)
        (tmp_path / lock.FILE).unlink()
        left_by_another_machine(tmp_path)
        first.send_signal(signal.SIGCONT)
        assert first.wait(200) == 2
        assert "process 7 on elsewhere" in first.stderr.read()
    assert (tmp_path / lock.FILE).exists()


def test_a_folder_that_cannot_be_written_and_a_full_disk_have_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="/proc/job"), hold_lock(Path("/proc")):
        pass
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(lock.json, "dumps", full)
    with pytest.raises(OSError, match="No space"), hold_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
