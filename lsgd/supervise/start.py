"""One start of a supervised job, from its launcher to the end of its processes on this machine."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from lsgd.errors import PreemptedError, UsageError
from lsgd.job import members
from lsgd.job.ending import GRACE, cleanup_process
from lsgd.job.launcher import forwarded_signal
from lsgd.job.members import JOB_TAG, PeerMonitor, was_restarted
from lsgd.job.system import memory_kills
from lsgd.supervise.folder import UNKNOWN, progress_marker, run_folder
from lsgd.supervise.logbook import Logbook
from lsgd.supervise.verdict import ExitSummary, summarize_exit

SAVING = 60.0
"""The seconds that a job gets for saving after a stop signal."""
WAKE = 0.5
"""The seconds between polls for new processes, signals and stalls, which no event reports."""


def run_job(
    command: Sequence[str],
    logbook: Logbook,
    signals: Sequence[int],
    *,
    stall_timeout: float | None = None,
    grace: float = SAVING,
    output: IO[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ExitSummary:
    """Run a job's launch command once, stop its leftover processes here, and summarize its exit.

    `signals` are the numbers of the signals that this process receives meanwhile; the job is
    stopped at each. The command's output goes to `output`, by default to this process's own, and it
    gets the variables of `environment` in addition.
    """
    folder = run_folder(command)
    members.clear_records(folder)
    kills_before = memory_kills()
    # The helper inherits the lock, so that it is held until the job is stopped.
    with cleanup_process((JOB_TAG, str(folder)), keep=[logbook.lock_file.fileno()]):
        launcher = _launched(command, folder, output, environment or {})
        with PeerMonitor(folder, launcher.pid) as watch:
            silent = _watch_to_the_end(
                watch, command, launcher, logbook, signals, stall_timeout, grace
            )
            code = launcher.poll()
        members.stop_job(folder)
        launcher.wait()
    if silent:
        return ExitSummary(1, f"nothing was written for {stall_timeout:g} s")
    # Deaths on other machines are not detected; their exit reports come after.
    present = members.process_records(folder)
    others = [member for member in present if member.code and member not in watch.dead]
    # A process that was restarted since did not end the job.
    dead = [member for member in (*watch.dead, *others) if not was_restarted(member, present)]
    ending = summarize_exit(dead, command[0], code)
    if ending.lost and memory_kills() > kills_before:
        cause = f"{ending.cause}; meanwhile the kernel killed a process that was out of memory"
        return ExitSummary(ending.code, cause, lost=True)
    return ending


def _launched(
    command: Sequence[str], folder: Path, output: IO[str] | None, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, **environment, JOB_TAG: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C reaches the supervisor alone, which stops the job with SIGTERM.
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started ({error.strerror})") from None


def _watch_to_the_end(
    watch: PeerMonitor,
    command: Sequence[str],
    launcher: "subprocess.Popen[bytes]",
    logbook: Logbook,
    signals: Sequence[int],
    stall_timeout: float | None,
    grace: float,
) -> bool:
    """Wait until a job's launcher ends or the job is to be stopped; return whether it stalled.

    A received signal is passed on at once, and the job gets `grace` seconds to save after the
    first.
    """
    stop_at, passed_on, silent = float("inf"), 0, False
    seen, since = progress_marker(watch.folder), time.monotonic()
    told: set[tuple[str, int]] = set()
    while launcher.poll() is None and time.monotonic() < stop_at:
        watch.wait(WAKE)
        over = any(
            member.code not in (0, PreemptedError.exit_code) and not member.is_restartable
            for member in watch.dead
        )
        if over:
            # The launcher may stop the others itself.
            stop_at = min(stop_at, time.monotonic() + GRACE)
        elif not signals:
            _write_lives(watch, logbook, told)
        if passed_on < len(signals):
            passed_on += 1
            logbook.log_event("asked", f"{signal.Signals(signals[-1]).name}: stopping the job")
            watch.wait(0)
            _ask_to_stop(watch, command, launcher.pid)
            stop_at = min(stop_at, time.monotonic() + (grace if passed_on == 1 else 0))
        now = progress_marker(watch.folder) if stall_timeout else seen
        if now != seen and UNKNOWN not in now:
            seen, since = now, time.monotonic()
        if stall_timeout and time.monotonic() - since > stall_timeout:
            silent, stop_at = True, 0
    watch.wait(0)
    return silent


def _ask_to_stop(watch: PeerMonitor, command: Sequence[str], launcher: int) -> None:
    """Signal the processes of a job to save and exit.

    The signal goes to the processes themselves, as launchers give them too little time to save. If
    none has reported on this machine, they may be on others, where the launcher alone reaches them;
    without such a launcher they start here, in its process group, which is a negative pid.
    """
    asked = [(member.pid, signal.SIGTERM) for member in watch.alive.values()]
    if not asked:
        forwarded = forwarded_signal(command)
        asked = [(launcher, forwarded) if forwarded else (-launcher, signal.SIGTERM)]
    for pid, number in asked:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _write_lives(watch: PeerMonitor, logbook: Logbook, told: set[tuple[str, int]]) -> None:
    """Log, once each, the processes that a running job has lost and those that were restarted."""
    events = [
        ("lost", member, f"{summarize_exit([member], '', None).cause}; restarting it")
        for member in watch.dead
        if member.is_restartable
    ]
    events += [
        (
            "returned",
            member,
            f"process {member.rank} has restarted as pid {member.pid} (restart {member.life})",
        )
        for member in watch.alive.values()
        if member.life
    ]
    for event, member, text in events:
        if (event, member.pid) not in told:
            told.add((event, member.pid))
            logbook.log_event(event, text, rank=member.rank, pid=member.pid, life=member.life)
