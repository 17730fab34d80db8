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
from threading import Event, Thread

import pytest

from lsgd.errors import Refused
from lsgd.run import lock
from lsgd.run.lock import held

HOLDS = """
import sys, time
from pathlib import Path
from lsgd.run import lock
lock.BEAT = 0.05
with lock.held(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT": 0.2, "WATCH": 1.0, "DYING": 0.4, "SETTLING": 0.2}.items():
        monkeypatch.setattr(lock, name, seconds)
    monkeypatch.setattr(lock, "POLL", 0.02)


@contextmanager
def holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the folder."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], **pipes)
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def seconds_until_held(folder: Path) -> float:
    begin = time.monotonic()
    with held(folder):
        return time.monotonic() - begin


def is_refused(folder: Path, pid: int | str = "") -> bool:
    with pytest.raises(Refused, match=rf"{folder} is being written .*process {pid}"), held(folder):
        pass
    return True


def left_by_another_machine(folder: Path, **fields: object) -> Path:
    """The lock file of a process on another machine."""
    there = {"host": "elsewhere", "boot": "b", "pid": 7, "since": "2026-01-02 03:04:05 +0000"}
    path = folder / lock.FILE
    path.write_text(json.dumps(there | fields))
    return path


@contextmanager
def ticking(path: Path, times: Callable[[int], float]) -> Iterator[None]:
    """The file, touched every now and then by a clock that shows these times."""
    over = Event()

    os.utime(path, (times(0), times(0)))

    def touch() -> None:
        number = 0
        while not over.wait(lock.BEAT):
            number += 1
            os.utime(path, (times(number), times(number)))

    thread = Thread(target=touch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_second_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(Refused) as refusal, held(tmp_path):
            pass
        who = f"(process {first.pid} on {platform.node()}, since 20"
        assert who in str(refusal.value)
        assert "write another run_dir" in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_it_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    with held(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]
        with pytest.raises(Refused), held(tmp_path):
            pass
        assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]
    assert list(tmp_path.iterdir()) == []


def test_after_a_kill_the_next_begins_at_once(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
        assert (tmp_path / lock.FILE).exists()
        assert seconds_until_held(tmp_path) < 0.2


def test_a_process_that_is_still_dying_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "DYING", 10.0)
    with holder(tmp_path) as first, ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(seconds_until_held, tmp_path)
        first.send_signal(signal.SIGSTOP)  # or its touches tell that it lives
        time.sleep(0.2)
        first.kill()
        assert 0.1 < next_one.result() < 5


def test_a_stopped_process_of_this_machine_is_alive(tmp_path: Path) -> None:
    """As after Ctrl-Z: it will go on to write."""
    with holder(tmp_path) as first:
        first.send_signal(signal.SIGSTOP)
        assert is_refused(tmp_path, first.pid)


CLOCKS = {
    "right": lambda number: time.time(),
    "hours ahead": lambda number: time.time() + 9 * 3600,
    "years behind": lambda number: 1000 + number,
    "going backwards": lambda number: time.time() - 3600 * number,
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_on_another_machine_who_moves_is_alive(tmp_path: Path, clock: str) -> None:
    with ticking(left_by_another_machine(tmp_path), CLOCKS[clock]):
        assert is_refused(tmp_path, "7 on elsewhere, since 2026-01-02 03:04:05")
    assert (tmp_path / lock.FILE).exists()


def watched(folders: list[Path]) -> bool:
    """Whether each is let in after it was watched, and not before; all are watched at once."""
    with ThreadPoolExecutor(len(folders)) as pool:
        waits = list(pool.map(seconds_until_held, folders))
    return min(waits) > lock.WATCH and max(waits) < lock.WATCH + 1


def test_on_another_machine_who_does_not_move_is_dead(tmp_path: Path) -> None:
    folders = [tmp_path / clock for clock in CLOCKS]
    for folder, clock in zip(folders, CLOCKS.values(), strict=True):
        folder.mkdir()
        os.utime(left_by_another_machine(folder), (clock(1), clock(1)))
    assert watched(folders)


@pytest.mark.parametrize("fields", [{"host": platform.node()}, {"boot": lock._boot()}])
def test_a_machine_of_the_same_name_is_another(tmp_path: Path, fields: dict[str, str]) -> None:
    """As is this one before a restart."""
    with ticking(left_by_another_machine(tmp_path, **fields), CLOCKS["right"]):
        assert is_refused(tmp_path, 7)


def test_a_network_drive_that_keeps_the_lock_of_a_dead_machine(tmp_path: Path) -> None:
    with left_by_another_machine(tmp_path).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock.WATCH < seconds_until_held(tmp_path) < lock.WATCH + 1


def test_a_drive_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever moves is alive; who does not, also on this machine, is dead."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    with holder(tmp_path) as first:
        assert is_refused(tmp_path, first.pid)
        first.kill()
        first.wait()
        assert lock.WATCH < seconds_until_held(tmp_path) < lock.WATCH + 1


def test_a_copied_folder_is_another(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass
    (tmp_path / "run").mkdir()
    with holder(tmp_path / "run"):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        assert seconds_until_held(tmp_path / "copy") < 0.2


def test_a_file_that_was_cut_short_blocks_nobody(tmp_path: Path) -> None:
    contents = ["", "{", "[]", '{"host": "a"}']
    folders = [tmp_path / str(number) for number in range(len(contents))]
    for folder, content in zip(folders, contents, strict=True):
        folder.mkdir()
        (folder / lock.FILE).write_text(content)
    assert watched(folders)


@pytest.mark.parametrize("dead", ["here", "elsewhere", "never"])
def test_of_several_that_come_at_once_one_is_let_in(tmp_path: Path, dead: str) -> None:
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
            with held(tmp_path):
                inside.append(number)
                most.append(len(inside))
                deadline = time.monotonic() + 10
                while len(inside) + len(refused) < 4 and time.monotonic() < deadline:
                    time.sleep(lock.POLL)
                most.append(len(inside))
                inside.remove(number)
                return True
        except Refused:
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
        assert first.wait(10) == 2
        assert "process 7 on elsewhere" in first.stderr.read()
    assert (tmp_path / lock.FILE).exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="/proc/job"), held(Path("/proc")):
        pass


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock.json, "dumps", full)
    with pytest.raises(OSError, match="No space"), held(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
