import os
import signal
import subprocess
import sys
from pathlib import Path

from helpers.broken_machine import broken, left_running

from lsgd.doctor.child import ask


def test_an_import_that_hangs_is_given_up(tmp_path: Path) -> None:
    faults = broken(tmp_path, horovod="import time; time.sleep(600)")
    answer = ask("horovod", limit=1, environment=faults)
    assert answer.why == "it did not end in 1 s"
    assert left_running(faults) == []


def test_an_import_that_kills_the_process_is_named(tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    answer = ask("horovod", limit=60, environment=broken(tmp_path, horovod=kill))
    assert (answer.facts, answer.why) == ({}, "it crashed with SIGSEGV")


def test_what_it_says_before_it_dies_is_passed_on(tmp_path: Path) -> None:
    program = "import os; os.write(2, b'undefined symbol: _ZN3c10\\n'); os.abort()"
    answer = ask("horovod", limit=60, environment=broken(tmp_path, horovod=program))
    assert answer.why == "it crashed with SIGABRT (undefined symbol: _ZN3c10)"


def test_a_doctor_that_was_killed_leaves_no_probe_for_long(tmp_path: Path) -> None:
    """Its own alarm comes 5 s after the limit, here a second from the start."""
    faults = broken(tmp_path, horovod="import time; time.sleep(600)")
    words = ["-m", "lsgd.doctor.probe", str(tmp_path / "answer"), "-4", "horovod"]
    done = subprocess.run([sys.executable, *words], env=os.environ | faults, timeout=60)
    assert done.returncode == -signal.SIGALRM
