"""The supervisor's loop: start the job, and restart it while a restart can succeed."""

import argparse
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from lsgd.errors import PreemptedError, UsageError
from lsgd.job.ending import GRACE
from lsgd.supervise import catch_stop_signals
from lsgd.supervise.folder import (
    last_step,
    newest_checkpoint,
    progress_marker,
    repeated_straggler,
    run_folder,
)
from lsgd.supervise.logbook import Logbook, open_logbook
from lsgd.supervise.start import run_job
from lsgd.supervise.verdict import restart_obstacle

NP, HOSTS = "{np}", "{hosts}"
"""The placeholders in a command: the number of processes, and the hosts with their numbers."""
SSH, FAILED_SSH = 22, 255
"""The default port of ssh, and its exit code where it could not run the command."""
OUTAGE, PAUSE = 600.0, 5.0
"""The most seconds to wait for hosts that do not answer, and the seconds between two tries."""


def supervise_job(options: argparse.Namespace) -> int:
    """Run a job's launch command, restarting it until it succeeds or cannot; return its exit code.

    Raises UsageError, having started nothing, if the command names no run folder, or one that holds
    something else or has another supervisor, or if its program does not exist.
    """
    folder = run_folder(options.command)
    program = options.command[0]
    if not shutil.which(program):  # before there is a folder for it
        raise UsageError(
            f"{program} cannot be started: it is not a program here; check its path and its "
            "permission to execute"
        )
    with open_logbook(folder) as logbook:
        signals = catch_stop_signals()
        deaths = restarts = lost = 0
        last = None
        hosts = reachable_hosts(options.hosts)
        while True:
            command, size = _next_command(options, hosts, lost, logbook)
            before = newest_checkpoint(folder)
            ending = run_job(
                command, logbook, signals, stall_timeout=options.stall_timeout, grace=options.grace
            )
            saved = newest_checkpoint(folder) != before
            step = last_step(folder)
            logbook.log_event(
                "end", f"{ending.cause}, after step {step}", step=step, code=ending.code
            )
            if straggler := repeated_straggler(folder):
                logbook.log_event("straggler", straggler)
            if ending.code == 0:
                if progress_marker(folder):
                    return 0
                logbook.log_event(
                    "nothing trained",
                    f"the command exited with code 0, but no run was trained in {folder}; read "
                    "its output, and write the command as it works without a supervisor",
                )
                return 1
            preempted = ending.code == PreemptedError.exit_code
            deaths = 0 if saved or preempted else deaths + 1
            reason = restart_obstacle(
                ending, deaths, same_failure=ending.code == last and not saved
            )
            if not reason and restarts == options.restarts:
                reason = f"--restarts {restarts} is reached"
            if not reason and not signals:
                hosts, reason = _wait_for_hosts(options, logbook, signals)
            if signals:
                return ending.code if preempted else 128 + signals[-1]
            if reason:
                logbook.log_event("given up", f"not restarted: {reason}")
                return ending.code
            restarts += 1
            last = ending.code
            if ending.lost and size and size > options.min_processes:
                lost += 1


def _next_command(
    options: argparse.Namespace, hosts: Mapping[str, int], lost: int, logbook: Logbook
) -> tuple[list[str], int | None]:
    """Return the next command to start and its number of processes, if known; log both.

    They are those of the hosts that answer, less the processes that were lost. Raises UsageError if
    these hosts are too few.
    """
    if silent := _silent(options, hosts):
        logbook.log_event("hosts", f"no answer from {silent}")
    if why := _host_shortage(options, hosts):
        raise UsageError(why)
    slots = options.processes or sum(hosts.values())
    size = max(slots - lost, options.min_processes) if slots else None
    command = fill_placeholders(options.command, size, hosts)
    logbook.log_event("start", f"starts {' '.join(command)}", processes=size, command=command)
    return command, size


def _wait_for_hosts(
    options: argparse.Namespace, logbook: Logbook, signals: Sequence[int]
) -> tuple[dict[str, int], str]:
    """Wait until enough hosts answer; return those that do, and why they are too few, if they are.

    The wait ends after OUTAGE seconds or at a signal. The outage of a network, of which a job has
    died, ends all answers for a while.
    """
    deadline, is_logged = time.monotonic() + OUTAGE, False
    hosts = reachable_hosts(options.hosts)
    while why := _host_shortage(options, hosts):
        if signals or time.monotonic() >= deadline:
            return hosts, why
        if not is_logged:
            logbook.log_event("hosts", f"no answer from {_silent(options, hosts)}; asking again")
            is_logged = True
        time.sleep(PAUSE)
        hosts = reachable_hosts(options.hosts)
    return hosts, ""


def _host_shortage(options: argparse.Namespace, hosts: Mapping[str, int]) -> str:
    """Return why the hosts that answer are too few for a job; empty if they are not."""
    if options.hosts and not hosts:
        return "no host of --hosts answers at its ssh port; start sshd there, or write other hosts"
    slots = options.processes or sum(hosts.values())
    if (silent := _silent(options, hosts)) and slots < options.min_processes:
        return (
            f"--min-processes {options.min_processes} is more than the {slots} of the hosts that "
            f"answer; start sshd on {silent}, or write {slots} or less"
        )
    return ""


def _silent(options: argparse.Namespace, hosts: Mapping[str, int]) -> str:
    """Return the names of the hosts of --hosts that do not answer, as text."""
    return ", ".join(host for host in options.hosts if host not in hosts)


def fill_placeholders(
    command: Sequence[str], size: int | None, hosts: Mapping[str, int]
) -> list[str]:
    """Replace {np} and {hosts} in a launch command by the number of processes and the hosts.

    >>> fill_placeholders(["mpirun", "-H", "{hosts}", "-np", "{np}"], 12, {"a": 8, "b": 4})
    ['mpirun', '-H', 'a:8,b:4', '-np', '12']
    """
    names = ",".join(f"{host}:{slots}" for host, slots in hosts.items())
    return [word.replace(NP, str(size)).replace(HOSTS, names) for word in command]


def reachable_hosts(hosts: Mapping[str, int]) -> dict[str, int]:
    """Return the hosts, with their process counts, that answer on ssh's port, as launchers use ssh.

    Those that ssh reaches through another host or a program have to run a command.
    """
    return {host: slots for host, slots in hosts.items() if _answers(host)}


def _answers(host: str) -> bool:
    """Return whether a host accepts ssh connections, directly or through its proxy."""
    address = _ssh_address(host)
    try:
        if address:
            socket.create_connection(address, timeout=GRACE).close()
            return True
        command = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={GRACE:.0f}", "--", host]
        done = subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, timeout=3 * GRACE)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode != FAILED_SSH


def _ssh_address(host: str) -> tuple[str, int] | None:
    """Return the name and port at which ssh reaches a host; None if it has no direct connection."""
    address = (host.rpartition("@")[2], SSH)
    with suppress(OSError, subprocess.SubprocessError, KeyError, ValueError):
        asked = ["ssh", "-G", "--", host]
        said = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True,
            timeout=GRACE,
        )  # fmt: skip
        pairs = [line.partition(" ") for line in said.stdout.splitlines()]
        settings = {name: value for name, _, value in pairs}
        if any(settings.get(name, "none") != "none" for name in ("proxyjump", "proxycommand")):
            return None
        address = (settings["hostname"], int(settings["port"]))
    return address
