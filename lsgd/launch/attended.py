"""A job started at a terminal: Ctrl-C lets its processes save and prints one line.

By default, launchers answer Ctrl-C with tracebacks of their own, and some give their processes less
time than a save takes.
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

from lsgd.job.ending import cleanup_process
from lsgd.job.launcher import forwarded_signal
from lsgd.job.members import JOB_TAG, is_job_process, process_records, stop_job
from lsgd.job.system import TERMINAL, has_terminal_open

SAVING = 15.0
"""The seconds after Ctrl-C within which the processes exit: their own limit and some more."""
INTERRUPTED = 130
LOOK = 0.1
"""The seconds between two looks whether a question at the terminal is answered."""


def is_attended() -> bool:
    """Return whether a person at a terminal starts this job, and not a supervisor."""
    return sys.stdin is not None and sys.stdin.isatty() and JOB_TAG not in os.environ


def run_attended(command: Sequence[str]) -> int:
    """Start a job, wait for its end and return its exit code; Ctrl-C ends it with one line.

    The job is a process group of its own, so that the terminal sends Ctrl-C to this process alone.
    While it asks a question at the terminal, as ssh does for a password, it has the terminal. If
    the terminal is closed, the processes save. The job does not outlive this process.
    """
    with tempfile.TemporaryDirectory(prefix="lsgd-job-") as name:
        folder = Path(name)
        with cleanup_process((JOB_TAG, name)):
            job = subprocess.Popen(command, env=os.environ | {JOB_TAG: name}, process_group=0)
            try:
                for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                    signal.signal(number, lambda received, _: job.send_signal(received))
                # At a closed terminal's SIGHUP itself a launcher may kill its processes.
                saves = forwarded_signal(command) or signal.SIGTERM
                if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                    signal.signal(signal.SIGHUP, lambda *_: job.send_signal(saves))
                code = _wait(job)
            except KeyboardInterrupt:
                code = _interrupt(job, folder, forwarded_signal(command))
    return code if code >= 0 else 128 - code


def _wait(job: "subprocess.Popen[bytes]") -> int:
    """Wait for the job's end and return its exit code; lend it the terminal for its questions.

    A process that reads or sets the terminal stops its group unless the group has the terminal.
    """
    status: int | None = None
    while True:
        if status is None:
            _, status = os.waitpid(job.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            job.returncode = os.waitstatus_to_exitcode(status)
            return job.returncode
        stop, status = os.WSTOPSIG(status), None
        if stop == signal.SIGTSTP:  # Ctrl-Z at the question, which stops this process too
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        if stop in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP):
            status = _lend_terminal(job)


def _lend_terminal(job: "subprocess.Popen[bytes]") -> int | None:
    """Let a stopped job continue with the terminal, and take it back after the question.

    In the meantime the terminal sends Ctrl-C and Ctrl-Z to the job. Returns the job's status, as of
    os.waitpid, if it ends or stops by then.
    """
    terminal = os.open(TERMINAL, os.O_RDWR)
    own = os.getpgrp()
    try:
        while os.tcgetpgrp(terminal) != own:  # a job in the background waits for `fg`, as any does
            os.killpg(own, signal.SIGTTIN)
            time.sleep(LOOK)
        # The kernel would stop this process as it takes the terminal back.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(terminal, job.pid)
        try:
            os.killpg(job.pid, signal.SIGCONT)
            time.sleep(LOOK)
            while has_terminal_open(job.pid) is not False:
                changed, status = os.waitpid(job.pid, os.WUNTRACED | os.WNOHANG)
                if changed:
                    return status
                time.sleep(LOOK)
        finally:
            os.tcsetpgrp(terminal, own)
    finally:
        os.close(terminal)
    return None


def _interrupt(
    job: "subprocess.Popen[bytes]", folder: Path, forwarded: signal.Signals | None
) -> int:
    """Let the job's processes save and exit, then kill its launcher."""
    with suppress(KeyboardInterrupt):  # a second Ctrl-C ends all of them at once
        if forwarded and not _at_work(folder):
            # They are on other machines, where only the launcher reaches them.
            job.send_signal(forwarded)
            with suppress(subprocess.TimeoutExpired):
                job.wait(SAVING)
        else:
            # The launcher would print tracebacks, and no longer has to watch the processes.
            job.send_signal(signal.SIGSTOP)
            for pid in _at_work(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
            deadline = time.monotonic() + SAVING
            while time.monotonic() < deadline and _at_work(folder):
                time.sleep(0.05)
    with suppress(ProcessLookupError):  # the launcher has exited
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    reasons = [member.why for member in process_records(folder) if member.rank == 0 and member.why]
    stop_job(folder)
    print(f"\nlsgd: {reasons[0] if reasons else 'interrupted'}", file=sys.stderr)
    return INTERRUPTED


def _at_work(folder: Path) -> list[int]:
    """Return the pids of the job's processes that have recorded themselves and still run."""
    return [member.pid for member in process_records(folder) if is_job_process(member.pid, folder)]
