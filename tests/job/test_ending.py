"""How processes are found by their tag and ended, those too that are started meanwhile."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lsgd.job.ending import end, tagged

# Asked to leave, it starts another process of its own and goes. That one is deaf until it is a
# program of its own: who is asked between fork and exec forgets it.
HEIR = """
import os, signal, subprocess, sys, time

hears = "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])"

def leave(*_):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    program = f"import signal, time; {hears}; time.sleep(100)"
    subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
open(sys.argv[1], "w")
time.sleep(100)
"""


def test_a_tag_is_the_whole_value_of_its_variable() -> None:
    folder = f"/runs/{os.getpid()}"  # others may run this test on this machine too
    environment = os.environ | {"LSGD_TEST_TAG": f"{folder}/a", "LSGD_TEST_OTHER": f"{folder}/b"}
    with subprocess.Popen(["sleep", "100"], env=environment) as process:
        try:
            # A process in the midst of an exec shows no environment yet.
            deadline = time.monotonic() + 20
            while not (found := tagged(("LSGD_TEST_TAG", f"{folder}/a"))):
                assert time.monotonic() < deadline
            assert found == {process.pid}
            assert tagged(("LSGD_TEST_TAG", f"{folder}/")) == set()
            assert tagged(("LSGD_TEST_TAG", f"{folder}/b")) == set()
            assert tagged(("TEST_TAG", f"{folder}/a")) == set()
        finally:
            process.kill()


def test_who_leaves_when_asked_is_not_killed_nor_waited_for() -> None:
    tag = ("LSGD_TEST_TAG", f"asked-{os.getpid()}")
    with subprocess.Popen(["sleep", "100"], env=os.environ | dict([tag])) as process:
        begin = time.monotonic()
        assert end(tag, grace=20) == set()
        assert time.monotonic() - begin < 15
    assert process.returncode == -signal.SIGTERM


def test_what_is_started_meanwhile_is_asked_too(tmp_path: Path) -> None:
    tag = ("LSGD_TEST_TAG", f"heir-{os.getpid()}")
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", HEIR, str(ready)]
    with subprocess.Popen(command, env=os.environ | dict([tag])) as process:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        begin = time.monotonic()
        assert end(tag, grace=20) == set()
        assert time.monotonic() - begin < 15
    assert process.returncode == 0
    assert tagged(tag) == set()


def test_without_a_process_nothing_is_waited_for() -> None:
    begin = time.process_time()
    assert end(("LSGD_TEST_TAG", f"none-{os.getpid()}"), grace=60) == set()
    assert time.process_time() - begin < 10


CHILD = """
import signal, sys, time
from lsgd.job.ending import end_with_parent

if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, lambda *_: None)
end_with_parent(0.3)
open(sys.argv[1], "w")
while True:
    time.sleep(100)
"""
# A command as a launcher starts it, whose imports last until the launcher was killed.
COMMAND = """
import os, sys, time

launcher = os.getppid()
os.environ |= {"OMPI_COMM_WORLD_" + name: "0" for name in ("RANK", "LOCAL_RANK")}
os.environ |= {"OMPI_COMM_WORLD_" + name: "1" for name in ("SIZE", "LOCAL_SIZE")}
sys.argv[0] = "-m"
import lsgd

open(sys.argv[1], "w")
while os.getppid() == launcher:
    time.sleep(0.01)
from lsgd.job.command import run_command

run_command(lambda: time.sleep(100))
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.mark.parametrize("child", ["hears", "deaf", "imports"])
def test_a_child_ends_with_its_parent(tmp_path: Path, child: str) -> None:
    tag = ("LSGD_TEST_TAG", f"parent-{os.getpid()}-{child}")
    ready = tmp_path / "ready"
    program = COMMAND if child == "imports" else CHILD
    command = [sys.executable, "-c", PARENT, program, str(ready), child]
    with subprocess.Popen(command, env=os.environ | dict([tag])) as parent:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(tagged(tag)) == 2
        parent.kill()
    while tagged(tag):
        assert time.monotonic() < deadline
        time.sleep(0.01)
