"""Launch a job on one machine, and restart every process that dies.

    python -m lsgd.supervise.singly N -- COMMAND ...

The processes get ranks as under torchrun; `lsgd.supervise.restarts` describes the restarts.
"""

import signal
import socket
import sys
import uuid
from collections.abc import Sequence

from lsgd.job.command import run_alone
from lsgd.job.launcher import Launch, environment_of
from lsgd.supervise import catch_stop_signals
from lsgd.supervise.process_slot import ProcessSlot
from lsgd.supervise.restarts import parse_launcher_arguments, run_with_restarts

HERE = "127.0.0.1"


class LocalProcessSlots:
    """The processes of a job that all run on this machine, with one slot for each rank."""

    def __init__(self, size: int, command: Sequence[str]) -> None:
        self.seats = [ProcessSlot(command, uuid.uuid4().hex) for _ in range(size)]
        self.port = free_port()

    def run(self, rank: int, restart_count: int) -> int:
        """Run this rank's process to its end; return its exit code, negative for a signal."""
        size = len(self.seats)
        launch = Launch("torchrun", rank, size, rank, size, HERE, self.port, restart_count)
        process = self.seats[rank].start(environment_of(launch))
        return process.wait() if process else -signal.SIGTERM

    def send(self, number: int) -> None:
        """Send a signal to every process of the job, and start no more processes."""
        for seat in self.seats:
            seat.send(number)

    def clear(self) -> None:
        """End all processes that the job's processes have left running."""
        for seat in self.seats:
            seat.clear()


def free_port() -> int:
    """Return a free TCP port of this machine."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def run_singly(argv: Sequence[str]) -> int:
    """Run a job on this machine, restarting its dead processes; return the exit code of the job."""
    size, command = parse_launcher_arguments("lsgd.supervise.singly", __doc__ or "", argv)
    seats = LocalProcessSlots(size, command)
    try:
        return run_with_restarts(seats, size, command, catch_stop_signals())
    finally:
        seats.clear()


def main(argv: Sequence[str]) -> int:
    """Run the command line of the launcher for one machine; return its exit code."""
    return run_alone(lambda: run_singly(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
