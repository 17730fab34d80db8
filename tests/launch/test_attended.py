"""Ctrl-C at a terminal, with a launcher that answers it with tracebacks."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers.waiting import wait_until

from lsgd.job.members import FOLDER, JOB_TAG, clear_records
from lsgd.job.system import tagged_pids
from lsgd.launch.attended import _at_work
from lsgd.paths import CHECKPOINT

# Two processes that save for a moment; the launcher would say that one has failed.
LAUNCHER = """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, "-c", sys.argv[1], rank], start_new_session=True)
           for rank in "01"]
print("launched", *(each.pid for each in workers), flush=True)
codes = [each.wait() for each in workers]
raise RuntimeError("Traceback: a process has failed")
"""
WORKER = """
import signal, sys, time
from lsgd.job.members import exit_report
told = []
signal.signal(signal.SIGINT, lambda *_: told.append(1))
with exit_report(int(sys.argv[1])) as leave:
    print("ready", flush=True)
    while not told:
        time.sleep(0.01)
    time.sleep(0.3)
    raise SystemExit(leave(130, "interrupted: saved after step 5"))
"""
CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 900}
ATTENDED = """
import sys
from lsgd.launch.attended import is_attended, run_attended
assert is_attended()
raise SystemExit(run_attended(sys.argv[1:]))
"""

# It asks as ssh does, who hides the answer, and its worker trains once the terminal is taken back.
ASKING = """
import os, subprocess, sys, time
from getpass import getpass
print("answer:", getpass("password? "), flush=True)
while os.tcgetpgrp(0) == os.getpgrp():
    time.sleep(0.01)
sys.exit(subprocess.call([sys.executable, "-c", *sys.argv[1:]], start_new_session=True))
"""

# Its worker is as one on another machine, where no record of it and no signal but the launcher's
# comes from here.
REMOTE_LAUNCHER = """\
#!{python}
import os, signal, subprocess, sys
environment = {{name: value for name, value in os.environ.items() if name != "{tag}"}}
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]],
                          env=environment, start_new_session=True)
signal.signal(signal.{forwarded}, lambda number, _: worker.send_signal(number))
raise SystemExit(worker.wait())
"""
REMOTE_WORKER = """
import signal, sys, time
from pathlib import Path
told = []
signal.signal(getattr(signal, sys.argv[1]), lambda *_: told.append(1))
print("ready", flush=True)
end = time.monotonic() + 30  # if nobody asks it to save
while not told:
    time.sleep(0.01)
    if time.monotonic() > end:
        raise SystemExit
time.sleep(0.3)
Path(sys.argv[2]).touch()
"""


# It says at which signal its processes would save; the kernel sends none to its group.
NAMES_SIGNAL = """\
#!/bin/sh
trap 'echo HUP > "$1"; exit 1' HUP
trap 'echo USR1 > "$1"; exit 75' USR1
touch "$1.ready"
while :; do sleep 0.01; done
"""


def open_terminal(command: list[str]) -> tuple["subprocess.Popen[bytes]", int]:
    """Start the command with a terminal of its own; returns it and our end of the terminal."""
    terminal, its_end = pty.openpty()

    def prepare() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored below nohup

    job = subprocess.Popen(
        command,
        stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True, preexec_fn=prepare,
    )  # fmt: skip
    os.close(its_end)
    return job, terminal


def close_terminal(command: list[str], ready: Callable[[], bool]) -> int:
    """Run the command with a terminal of its own, which is closed once it is ready; returns its
    exit code."""
    job, terminal = open_terminal(command)
    with job:

        def is_ready() -> bool:
            while select.select([terminal], [], [], 0)[0]:
                os.read(terminal, 65536)
            return ready()

        wait_until(is_ready)
        os.close(terminal)
    return job.returncode


def at_a_terminal(command: list[str], *presses: tuple[str, int, bytes]) -> tuple[int, str]:
    """Run the command with a terminal of its own, and press keys each time that it has said
    something so often; returns exit code and what stands on the terminal."""
    job, terminal = open_terminal(command)
    seen, left, deadline = b"", [*presses], time.monotonic() + 900
    with job:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    seen += os.read(terminal, 65536)
                except OSError:  # nobody holds its other end any more
                    break
            if left and seen.decode(errors="replace").count(left[0][0]) >= left[0][1]:
                os.write(terminal, left.pop(0)[2])
        else:
            job.kill()
    os.close(terminal)
    return job.returncode, seen.decode(errors="replace").replace("\r", "")


def test_one_line_and_nothing_left() -> None:
    launcher = [sys.executable, "-c", LAUNCHER, WORKER]
    command = [sys.executable, "-c", ATTENDED, *launcher]
    code, seen = at_a_terminal(command, ("ready", 2, b"\x03"))
    assert code == 130, seen
    assert seen.count("lsgd: ") == 1, seen
    assert "\nlsgd: interrupted: saved after step 5\n" in seen
    assert "Traceback" not in seen
    pids = seen.partition("launched ")[2].splitlines()[0].split()
    # Whoever inherits them may take a while to bury them.
    left = [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in left)


def test_a_question_at_the_terminal_is_answered_and_ctrl_c_still_saves() -> None:
    """The job has the terminal for the time of the question alone."""
    command = [sys.executable, "-c", ATTENDED, sys.executable, "-c", ASKING, WORKER, "0"]
    code, seen = at_a_terminal(command, ("password? ", 1, b"yes\n"), ("ready", 1, b"\x03"))
    assert code == 130, seen
    assert "answer: yes\n" in seen
    assert seen.endswith("\nlsgd: interrupted: saved after step 5\n")
    assert "Traceback" not in seen


def test_ctrl_c_at_a_question_ends_the_job() -> None:
    ask = "read answer </dev/tty"
    # The job has the terminal once the first question is answered.
    command = [sys.executable, "-c", ATTENDED, "sh", "-c", f"echo first; {ask}; echo second; {ask}"]
    code, seen = at_a_terminal(command, ("first", 1, b"yes\n"), ("second", 1, b"\x03"))
    assert code == 130, seen
    assert "Traceback" not in seen


def test_a_closed_terminal_lets_the_processes_save(tmp_path: Path) -> None:
    """By the signal that the launcher forwards; at SIGHUP it would kill them."""
    launcher, signaled = tmp_path / "mpirun", tmp_path / "signal"
    launcher.write_text(NAMES_SIGNAL)
    launcher.chmod(0o755)
    command = [sys.executable, "-c", ATTENDED, str(launcher), str(signaled)]
    assert close_terminal(command, (tmp_path / "signal.ready").exists) == 75
    assert signaled.read_text() == "USR1\n"


@pytest.mark.slow
def test_a_run_is_saved_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """What it prints of that goes nowhere, and does not end the save."""
    rows = tmp_path / "run/metrics.jsonl"
    words = ["+recipe=fashion_lenet5", "inputs=synthetic", "device=cpu", "hardware=none"]
    words += ["workers=1", "worker_batch=2", "log_steps=1", f"run_dir={rows.parent}"]
    command = [sys.executable, "-m", "lsgd.train", *words]
    assert close_terminal(command, lambda: rows.exists() and '"train"' in rows.read_text()) == 75
    assert (rows.parent / CHECKPOINT).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "forwarded"), [("mpirun", "SIGUSR1"), ("horovodrun", "SIGTERM")])
def test_processes_on_other_machines_save(name: str, forwarded: str, tmp_path: Path) -> None:
    launcher, saved = tmp_path / name, tmp_path / "saved"
    launcher.write_text(
        REMOTE_LAUNCHER.format(python=sys.executable, tag=JOB_TAG, forwarded=forwarded)
    )
    launcher.chmod(0o755)
    job = ["env", "A=1", str(launcher), REMOTE_WORKER, forwarded, str(saved)]
    code, seen = at_a_terminal([sys.executable, "-c", ATTENDED, *job], ("ready", 1, b"\x03"))
    assert code == 130, seen
    assert saved.exists()
    assert seen.endswith("\nlsgd: interrupted\n")


@pytest.mark.slow
def test_an_end_of_its_own_keeps_its_exit_code() -> None:
    for words, code in ((["sh", "-c", "exit 3"], 3), (["sh", "-c", "kill -9 $$"], 137)):
        seen = at_a_terminal([sys.executable, "-c", ATTENDED, *words])
        assert seen == (code, "")


def test_a_job_of_a_supervisor_or_a_script_is_not_attended() -> None:
    """It becomes the launcher, as ever: who has started it reads signals and exit codes."""
    said = "from lsgd.launch.attended import is_attended; print(is_attended())"
    script = subprocess.run([sys.executable, "-c", said], stdin=subprocess.DEVNULL, **CAPTURED)
    assert script.stdout == "False\n"
    variable = ["env", f"{JOB_TAG}=folder", sys.executable, "-c", said]
    assert at_a_terminal(variable) == (0, "False\n")
    assert not tagged_pids((JOB_TAG, "folder"))


def test_ctrl_c_reaches_no_process_of_something_else(tmp_path: Path) -> None:
    """Whoever names it in the folder of the job."""
    clear_records(tmp_path)
    start = {"rank": 0, "host": "h", "pid": os.getpid()}
    (tmp_path / FOLDER / "0.jsonl").write_text(json.dumps(start) + "\n")
    assert _at_work(tmp_path) == []
    with subprocess.Popen(["sleep", "100"], env=os.environ | {JOB_TAG: str(tmp_path)}) as own:
        start["pid"] = own.pid
        (tmp_path / FOLDER / "1.jsonl").write_text(json.dumps(start) + "\n")
        wait_until(lambda: _at_work(tmp_path) == [own.pid])
        own.kill()
