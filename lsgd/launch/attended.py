"""A job started at a terminal: Ctrl-C lets its processes save and prints one line.

Left to themselves, launchers answer Ctrl-C with tracebacks of their own, and some give their
processes less time than a save takes.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lsgd.job.members import TAG, Member, members, stop

SAVING = 15.0
"""Seconds after Ctrl-C in which the processes end by themselves: their own limit and some more."""
INTERRUPTED = 130


def is_attended() -> bool:
    """Return whether a person at a terminal starts this job, and no supervisor of it does."""
    return sys.stdin is not None and sys.stdin.isatty() and TAG not in os.environ


def run_attended(command: Sequence[str]) -> int:
    """Start a job, wait for its end and return its exit code; Ctrl-C ends it with one line.

    The job is a process group of its own, so that the terminal sends Ctrl-C to this process alone.
    It does not outlive this process.
    """
    with tempfile.TemporaryDirectory(prefix="lsgd-job-") as name:
        folder = Path(name)
        helper = subprocess.Popen(
            # It stops the job once this process, and with it the end of the pipe, is gone.
            [sys.executable, "-m", "lsgd.job.members", name],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        with helper:
            job = subprocess.Popen(command, env=os.environ | {TAG: name}, process_group=0)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, lambda received, _: job.send_signal(received))
            try:
                code = job.wait()
            except KeyboardInterrupt:
                code = _interrupt(job, folder)
    return code if code >= 0 else 128 - code


def _interrupt(job: "subprocess.Popen[bytes]", folder: Path) -> int:
    """Let the processes of the job save and end, then end its launcher, which says nothing."""
    # It would print tracebacks, and its watch over the processes is no longer needed.
    job.send_signal(signal.SIGSTOP)
    with suppress(KeyboardInterrupt):  # a second Ctrl-C ends all of them at once
        for member in members(folder):
            with suppress(ProcessLookupError):
                os.kill(member.pid, signal.SIGINT)
        deadline = time.monotonic() + SAVING
        while time.monotonic() < deadline and any(map(_is_running, members(folder))):
            time.sleep(0.05)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    words = [member.why for member in members(folder) if member.rank == 0 and member.why]
    stop(folder)
    print(f"\nlsgd: {words[0] if words else 'interrupted'}", file=sys.stderr)
    return INTERRUPTED


def _is_running(member: Member) -> bool:
    """Return whether a process of the job has neither ended nor become a zombie of its launcher."""
    try:
        state = Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
