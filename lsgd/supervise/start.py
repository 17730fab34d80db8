"""One start of the job: from its launcher to the end of all that it has started here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from lsgd.errors import Preempted, Refused
from lsgd.job import members
from lsgd.job.members import GRACE, TAG, Watch, has_returned
from lsgd.supervise.folder import last_written, run_folder
from lsgd.supervise.logbook import Logbook
from lsgd.supervise.verdict import Ending, how_it_ended

SAVING = 60.0
"""Seconds that a job gets for saving when it is asked to end."""
WAKE = 0.5
"""Seconds between looks at what no event tells: new processes, signals, silence."""


def run_job(
    command: Sequence[str],
    logbook: Logbook,
    signals: Sequence[int],
    *,
    silence: float | None = None,
    grace: float = SAVING,
    output: IO[str] | None = None,
) -> Ending:
    """Start the command once, wait for its end, and leave nothing of it on this machine.

    `signals` are those that this process receives meanwhile, by their numbers; the job is asked to
    end at each. What the command prints goes to `output`, by default where this process prints.
    """
    folder = run_folder(command)
    members.clear(folder)
    memory_kills = _memory_kills()
    helper = subprocess.Popen(
        # It stops the job as soon as this process, and with it the end of the pipe, is gone.
        [sys.executable, "-m", "lsgd.job.members", str(folder)],
        stdin=subprocess.PIPE,
        # It keeps the lock until the job is stopped.
        pass_fds=[logbook.file.fileno()],
        start_new_session=True,
    )
    with helper:
        launcher = _launched(command, folder, output)
        with Watch(folder, launcher.pid) as watch:
            silent = _watch_to_the_end(watch, launcher, logbook, signals, silence, grace)
            code = launcher.poll()
        members.stop(folder)
        launcher.wait()
    if silent:
        return Ending(1, f"nothing was written for {silence:g} s")
    # Deaths on other machines are not seen; their last words stand behind.
    present = members.members(folder)
    others = [member for member in present if member.code and member not in watch.dead]
    # Whose later life has worked since did not end the job.
    dead = [member for member in (*watch.dead, *others) if not has_returned(member, present)]
    ending = how_it_ended(dead, command[0], code)
    if ending.lost and _memory_kills() > memory_kills:
        cause = f"{ending.cause}; the kernel has killed a process for want of memory meanwhile"
        return Ending(ending.code, cause, lost=True)
    return ending


def _launched(
    command: Sequence[str], folder: Path, output: IO[str] | None
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command,
            env=os.environ | {TAG: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C reaches the supervisor alone, which passes it on in its own way.
            start_new_session=True,
        )
    except OSError as error:
        raise Refused(f"{command[0]} cannot be started ({error.strerror})") from None


def _watch_to_the_end(
    watch: Watch,
    launcher: "subprocess.Popen[bytes]",
    logbook: Logbook,
    signals: Sequence[int],
    silence: float | None,
    grace: float,
) -> bool:
    """Wait until the launcher has ended or the job is to be stopped; returns whether for silence.

    A signal is passed on at once, and the job gets `grace` seconds to save after the first.
    """
    began, stop_at, passed_on, silent = time.time(), float("inf"), 0, False
    written: set[tuple[str, int]] = set()
    while launcher.poll() is None and time.monotonic() < stop_at:
        watch.wait(WAKE)
        over = any(
            member.code not in (0, Preempted.exit_code) and not member.may_return
            for member in watch.dead
        )
        if over:
            # The launcher may end the others by itself.
            stop_at = min(stop_at, time.monotonic() + GRACE)
        elif not signals:
            _write_lives(watch, logbook, written)
        if passed_on < len(signals):
            passed_on += 1
            logbook.say("asked", f"{signal.Signals(signals[-1]).name}: the job is to end")
            watch.wait(0)
            # The processes themselves, as launchers give them too little time to save. Where none
            # has reported yet, the launcher's group, which a minus sign names.
            for pid in [member.pid for member in watch.alive.values()] or [-launcher.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            stop_at = min(stop_at, time.monotonic() + (grace if passed_on == 1 else 0))
        if silence and time.time() - max(began, last_written(watch.folder)) > silence:
            silent, stop_at = True, 0
    watch.wait(0)
    return silent


def _write_lives(watch: Watch, logbook: Logbook, written: set[tuple[str, int]]) -> None:
    """Write down, once each, whom the job has lost while it goes on, and who is back."""
    events = [
        ("lost", member, f"{how_it_ended([member], '', None).cause}; it is to be started again")
        for member in watch.dead
        if member.may_return
    ]
    events += [
        (
            "returned",
            member,
            f"process {member.rank} is back as pid {member.pid}, life {member.life}",
        )
        for member in watch.alive.values()
        if member.life
    ]
    for event, member, text in events:
        if (event, member.pid) not in written:
            written.add((event, member.pid))
            logbook.say(event, text, rank=member.rank, pid=member.pid, life=member.life)


def _memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since this machine started."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
