import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.broken_machine import broken_environment, remaining_processes

from lsgd.doctor import run_probe


@pytest.mark.slow
def test_an_import_that_hangs_is_given_up(tmp_path: Path) -> None:
    faults = broken_environment(tmp_path, horovod="import time; time.sleep(600)")
    answer = run_probe("horovod", limit=1, environment=faults)
    assert answer.failure_reason == "it did not end in 1 s"
    assert remaining_processes(faults) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "it crashed with SIGSEGV",
        ),
        (
            "import os; os.write(2, b'undefined symbol: _ZN3c10\\n'); os.abort()",
            "it crashed with SIGABRT (undefined symbol: _ZN3c10)",
        ),
    ],
)
def test_an_import_that_kills_the_process_is_named(tmp_path: Path, program: str, why: str) -> None:
    answer = run_probe(
        "horovod", limit=200, environment=broken_environment(tmp_path, horovod=program)
    )
    assert (answer.facts, answer.failure_reason) == ({}, why)


@pytest.mark.slow
def test_a_doctor_that_was_killed_leaves_no_probe_for_long(tmp_path: Path) -> None:
    """Its own alarm comes 5 s after the limit, here a second from the start."""
    faults = broken_environment(tmp_path, horovod="import time; time.sleep(600)")
    words = ["-m", "lsgd.doctor.probe", str(tmp_path / "answer"), "-4", "horovod"]
    done = subprocess.run([sys.executable, *words], env=os.environ | faults, timeout=900)
    assert done.returncode == -signal.SIGALRM
