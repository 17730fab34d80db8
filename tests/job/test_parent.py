"""A process ends once the one that has started it was killed, whenever that was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.waiting import wait_until

from lsgd.job.system import has_tag, tagged_pids

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
sys.orig_argv[-len(sys.argv)] = "lsgd.none"
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
        wait_until(ready.exists)
        pids = tagged_pids(tag)
        assert len(pids) == 2
        parent.kill()
    # Of these alone, since it takes long to look at all processes of a machine.
    wait_until(lambda: not any(has_tag(pid, tag) for pid in pids))
