"""A process ends once the one that has started it was killed, whenever that was."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lsgd.job.ending import tagged

CHILD = """
import signal, sys, time
from lsgd.job.parent import end_with_parent

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
