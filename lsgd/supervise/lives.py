"""The processes of a job that are started one by one: who dies may come back while others go on.

It is what launchers of lsgd's own have in common, on this machine (`singly`) and over Ray (`ray`).
An exit code of lsgd's ends the job, and so does any end of process 0, at which the others meet: the
rest is asked to leave. Any other process that crashes or is killed is started again at once, with
LSGD_LIFE one higher. One that dies three times in a row soon after its start, without a row of the
run meanwhile, would do so for ever: the job ends.
"""

import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from lsgd.errors import Preempted
from lsgd.job.command import Parser, count_from
from lsgd.supervise.folder import last_written, run_folder
from lsgd.supervise.verdict import CAUSES, DEATHS

LEAVING = 15.0
"""Seconds that the others get to say why and to leave, once one process has ended the job."""
SAVING = 60.0
"""Seconds that they get where they have something to save or to finish."""
SOON = 60.0
"""Seconds after its start in which a process that dies may never have worked."""
WAKE = 0.25
"""Seconds between looks for signals."""


class Seats(Protocol):
    """The places of all processes of a job, one for each rank."""

    def run(self, rank: int, life: int) -> int:
        """Start this process and wait for its end, in a thread of its own.

        Returns its exit code, or minus the number of the signal that has killed it.
        """

    def send(self, number: int) -> None:
        """Send every process a signal; from now on none is started."""


@dataclass
class _Process:
    rank: int
    life: int = 0
    began: float = 0.0
    early_deaths: int = 0
    """Deaths in a row, each soon after the start."""


def run_lives(
    seats: Seats,
    size: int,
    command: Sequence[str],
    signals: Sequence[int],
    *,
    grace: float = SAVING,
) -> int:
    """Start processes 0 to size - 1, and again those that die; returns the exit code of the job.

    `signals` are those that this process receives meanwhile, by their numbers: the first asks all
    processes to leave within `grace` seconds, the second kills them.
    """
    code: int | None = None
    passed_on, stop_at = 0, float("inf")
    running: dict[Future[int], _Process] = {}
    with ThreadPoolExecutor(size) as pool:

        def start(process: _Process) -> None:
            process.began = time.time()
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
                    if code is None and exit_code:
                        process.life += 1
                        start(process)
                    elif code is not None:
                        if code and not signals:  # or all are asked already, or soon
                            seats.send(signal.SIGTERM)
                        saves = code in (0, Preempted.exit_code)
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
    """The exit code of the job that this end of a process ends; None if the others go on."""
    if exit_code == 0:
        return None if process.rank else 0
    if exit_code in CAUSES:
        return exit_code
    if signals:
        return 128 + signals[0]
    lived = time.time() - process.began
    how = (
        f"was killed by signal {-exit_code}" if exit_code < 0 else f"crashed with code {exit_code}"
    )
    death = f"process {process.rank} {how} after {lived:.0f} s"
    failed = exit_code if exit_code > 0 else 128 - exit_code
    if process.rank == 0:
        _say(f"{death}, and with it the job has ended")
        return failed
    early = lived < SOON and _last_row(command) <= process.began
    process.early_deaths = process.early_deaths + 1 if early else 0
    if process.early_deaths == DEATHS:
        _say(
            f"{death}, for the {DEATHS}rd time in a row without a row of the run meanwhile; the "
            "job ends, as it would die for ever"
        )
        return failed
    _say(f"{death}; it is started again, as life {process.life + 1}")
    return None


def _last_row(command: Sequence[str]) -> float:
    """When the run last wrote, in seconds since 1970; 0 if the command names no folder for it."""
    if not any(word.startswith("run_dir=") for word in command):
        return 0.0
    return last_written(run_folder(command))


def _say(text: str) -> None:
    print(f"lsgd: {text}", file=sys.stderr, flush=True)


def read_lives(program: str, about: str, argv: Sequence[str]) -> tuple[int, list[str]]:
    """The number of processes and the command of each, from the words of a launcher's program.

    Raises Refused without both.
    """
    parser = Parser(program, about, usage=f"python -m {program} N -- COMMAND ...")
    parser.add_argument("size", type=count_from(1), metavar="N", help="how many processes")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what each of them runs")
    words = parser.parse_args(argv)
    return words.size, words.command
