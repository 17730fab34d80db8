"""How processes are found by their tag and ended, those too that are started meanwhile."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.waiting import wait_until

from lsgd.job.ending import end_tagged
from lsgd.job.system import tagged_pids

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
            wait_until(lambda: tagged_pids(("LSGD_TEST_TAG", f"{folder}/a")) == {process.pid})
            assert tagged_pids(("LSGD_TEST_TAG", f"{folder}/")) == set()
            assert tagged_pids(("LSGD_TEST_TAG", f"{folder}/b")) == set()
            assert tagged_pids(("TEST_TAG", f"{folder}/a")) == set()
        finally:
            process.kill()


def test_who_leaves_when_asked_is_not_killed_nor_waited_for() -> None:
    tag = ("LSGD_TEST_TAG", f"asked-{os.getpid()}")
    with subprocess.Popen(["sleep", "100"], env=os.environ | dict([tag])) as process:
        begin = time.monotonic()
        assert end_tagged(tag, grace=200) == set()
        assert time.monotonic() - begin < 150
    assert process.returncode == -signal.SIGTERM


def test_what_is_started_meanwhile_is_asked_too(tmp_path: Path) -> None:
    tag = ("LSGD_TEST_TAG", f"heir-{os.getpid()}")
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", HEIR, str(ready)]
    with subprocess.Popen(command, env=os.environ | dict([tag])) as process:
        wait_until(ready.exists)
        begin = time.monotonic()
        assert end_tagged(tag, grace=200) == set()
        assert time.monotonic() - begin < 150
    assert process.returncode == 0
    assert tagged_pids(tag) == set()


def test_without_a_process_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", None)
    assert end_tagged(("LSGD_TEST_TAG", f"none-{os.getpid()}"), grace=60) == set()


def test_the_program_ends_what_is_tagged_and_says_nothing() -> None:
    """Also not that Python has imported it before it runs it, which a supervised run would show."""
    tag = ("LSGD_TEST_TAG", f"program-{os.getpid()}")
    program = [sys.executable, "-W", "error", "-m", "lsgd.job.ending", *tag, "20"]
    with subprocess.Popen(["sleep", "100"], env=os.environ | dict([tag])) as process:
        done = subprocess.run(program, input=b"", capture_output=True, timeout=900)
        process.kill()
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
    assert process.returncode == -signal.SIGTERM
