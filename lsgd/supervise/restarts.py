"""A launcher's loop that restarts single processes of a job while the others go on.

lsgd's own launchers share it, on this machine (`singly`) and over Ray (`ray`). An exit code of lsgd
ends the job, and so does any end of process 0, which holds the store at which the others meet: the
others then get SIGTERM. Any other process that crashes or is killed is restarted at once, with
LSGD_LIFE one higher, unless the job is ending. If a process dies three times in a row soon after
its start, without a row of the run meanwhile, the job ends, as it would die for ever.
"""

import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from lsgd.errors import PeerLostError, PreemptedError
from lsgd.job.command import Parser, integer_from
from lsgd.override_syntax import last_path
from lsgd.supervise.folder import progress_marker, run_folder
from lsgd.supervise.verdict import CAUSES, DEATHS

LEAVING = 15.0
"""The seconds that the other processes get to report and exit once one has ended the job."""
SAVING = 60.0
"""The seconds that the other processes get where they have something to save or to finish."""
SOON = 60.0
"""The seconds after a start within which a death counts as early."""
WAKE = 0.25
"""The seconds between polls for signals."""


class ProcessSlots(Protocol):
    """The interface by which a launcher starts and signals a job's processes, one slot a rank."""

    def run(self, rank: int, restart_count: int) -> int:
        """Start this rank's process and wait for its end; return the exit code.

        It is called in a thread of its own. The code of a killed process is minus the signal's
        number. `restart_count` is the number of earlier starts.
        """

    def send(self, number: int) -> None:
        """Send a signal to every process of the job, and start no more processes."""


@dataclass
class _Process:
    rank: int
    life: int = 0
    began: float = 0.0
    """The start time by time.monotonic, as a machine's clock may be set."""
    seen: object = None
    """The state of the run's files at that time."""
    early_deaths: int = 0
    """The number of consecutive deaths soon after the start."""


def run_with_restarts(
    seats: ProcessSlots,
    size: int,
    command: Sequence[str],
    signals: Sequence[int],
    *,
    grace: float = SAVING,
) -> int:
    """Run a job's processes 0 to size - 1, restarting those that die; return the job's exit code.

    `signals` are the numbers of the signals that this process receives meanwhile, as of
    `catch_stop_signals`: the first sends SIGTERM to all processes, which have `grace` seconds to
    exit, and a second, by Ctrl-C, kills them.
    """
    code: int | None = None
    passed_on, stop_at = 0, float("inf")
    running: dict[Future[int], _Process] = {}
    with ThreadPoolExecutor(size) as pool:

        def start(process: _Process) -> None:
            process.began, process.seen = time.monotonic(), _written(command)
            running[pool.submit(seats.run, process.rank, process.life)] = process

        try:
            for rank in range(size):
                start(_Process(rank))
            while running:
                ended, _ = wait(running, timeout=WAKE, return_when=FIRST_COMPLETED)
                for future in ended:
                    process, exit_code = running.pop(future), future.result()
                    if code is not None:
                        continue
                    code = _code_of_job(process, exit_code, signals, command)
                    if code is None and exit_code and not signals:
                        process.life += 1
                        start(process)
                    elif code is not None:
                        # After a signal all have SIGTERM, or get it below. At the end of the run, a
                        # restarted process would otherwise look for process 0.
                        if not signals:
                            seats.send(signal.SIGTERM)
                        saves = process.rank > 0 and code in (0, PreemptedError.exit_code)
                        stop_at = min(stop_at, time.monotonic() + (grace if saves else LEAVING))
                if passed_on < len(signals):
                    passed_on += 1
                    seats.send(signal.SIGTERM)
                    stop_at = min(stop_at, time.monotonic() + (grace if passed_on == 1 else 0))
                if time.monotonic() > stop_at:
                    seats.send(signal.SIGKILL)
        finally:
            seats.send(signal.SIGKILL)  # the pool waits for them
    return code or 0


def _code_of_job(
    process: _Process, exit_code: int, signals: Sequence[int], command: Sequence[str]
) -> int | None:
    """Return the job's exit code if this exit of a process ends it; None if the others go on."""
    if exit_code == 0:
        return None if process.rank else 0
    # A process that was stopped for long has lost the others, which have not lost each other; where
    # all have lost their peers, process 0 exits with the same code.
    strayed = exit_code == PeerLostError.exit_code and process.rank > 0
    if exit_code in CAUSES and not strayed:
        return exit_code
    if signals:  # process 0 may have saved without the others
        return None if process.rank else 128 + signals[0]
    lived = time.monotonic() - process.began
    how = (
        f"was killed by signal {-exit_code}" if exit_code < 0 else f"crashed with code {exit_code}"
    )
    death = f"process {process.rank} {how} after {lived:.0f} s"
    failed = exit_code if exit_code > 0 else 128 - exit_code
    if process.rank == 0:
        if "lsgd.doctor.job_check" not in command:  # its code 1 is a finding, which it has printed
            _say(f"{death}, and the job ended with it")
        return failed
    early = lived < SOON and _written(command) == process.seen
    process.early_deaths = process.early_deaths + 1 if early else 0
    if process.early_deaths == DEATHS:
        _say(
            f"{death}, for the {DEATHS}rd time in a row without a new row of metrics; the job "
            "ends, as it would die again"
        )
        return failed
    _say(f"{death}; restarting it (restart {process.life + 1})")
    return None


def _written(command: Sequence[str]) -> object:
    """Return a value that changes whenever the run writes its files; None without a run folder."""
    return progress_marker(run_folder(command)) if last_path(command, "run_dir") else None


def _say(text: str) -> None:
    with suppress(OSError):  # a closed terminal, of which the job must not die
        print(f"lsgd: {text}", file=sys.stderr, flush=True)


def parse_launcher_arguments(
    program: str, about: str, argv: Sequence[str]
) -> tuple[int, list[str]]:
    """Parse a launcher's arguments into the number of processes and the command of each."""
    parser = Parser(program, about, usage=f"python -m {program} N -- COMMAND ...")
    parser.add_argument("size", type=integer_from(1), metavar="N", help="the number of processes")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the command of each process")
    options = parser.parse_args(argv)
    return options.size, options.command
