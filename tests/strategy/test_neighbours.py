"""What the processes of one machine share, played by threads; and the end of a real process."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.threaded import ThreadComm, run_on_threads

from lsgd.comm.single import SingleComm
from lsgd.errors import PeerLostError, UsageError
from lsgd.strategy.shared_memory import SharedMemoryGroup


def test_what_one_writes_all_read_and_it_has_no_name() -> None:
    def body(comm: ThreadComm) -> tuple[bytes, int]:
        memory = SharedMemoryGroup(comm, 3).memory
        comm.gather_objects(None)
        memory[comm.rank] = 7 + comm.rank
        comm.gather_objects(None)
        return bytes(memory), len(memory)

    assert run_on_threads(3, body) == [(bytes([7, 8, 9]), 3)] * 3


def test_no_file_has_it() -> None:
    """A file that is removed at the end would stay after a kill."""
    before = set(os.listdir("/dev/shm"))
    neighbours = SharedMemoryGroup(SingleComm(), 10)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "lsgd" in name]
    assert "/memfd:lsgd (deleted)" in Path("/proc/self/maps").read_text()
    assert len(neighbours.memory) == 10


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda path, token: (path, token[::-1]), "the memory there is not that of process 0"),
        (lambda path, token: (f"{path}0000", token), "No such file or directory"),
    ],
    ids=["another machine", "nothing there"],
)
def test_who_cannot_share_it_is_refused_and_so_are_all(changed: Any, why: str) -> None:
    class Elsewhere(ThreadComm):
        def broadcast_object(self, value: Any) -> Any:
            value = super().broadcast_object(value)
            return (changed(*value[0]), None) if self.rank == 1 else value

    def body(comm: ThreadComm) -> str:
        comm.__class__ = Elsewhere
        with pytest.raises(UsageError) as refused:
            SharedMemoryGroup(comm, 8)
        return str(refused.value)

    (text,) = set(run_on_threads(2, body))
    assert text.startswith("process 1: strategy=hogwild needs processes that share memory, and ")
    assert why in text
    assert text.endswith("on one machine, in one container and as one user, or write "
                         "strategy=async strategy.order=live")  # fmt: skip


def test_the_end_of_a_process_is_seen_at_once() -> None:
    """Also as long as nobody has waited for it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:

        class Beside(SingleComm):
            def gather_objects(self, value: Any) -> list[Any]:
                return [value, other.pid] if value == os.getpid() else [value]

        neighbours = SharedMemoryGroup(Beside(), 8)
        neighbours.check()
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(
            PeerLostError, match=r"^process 1 has ended, and the others cannot continue"
        ):
            neighbours.check()
        (descriptor,) = neighbours.lives
        del neighbours
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_without_the_memory_of_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is a file while the others open it, and has no name from then on."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    test_what_one_writes_all_read_and_it_has_no_name()
    assert not list(tmp_path.iterdir())
