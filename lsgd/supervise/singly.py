"""A launcher for one machine that starts every process by itself, and again if it dies:

    python -m lsgd.supervise.singly N -- COMMAND ...

The processes are numbered as torchrun's are; what follows their ends is in `lsgd.supervise.lives`.
"""

import signal
import socket
import sys
import uuid
from collections.abc import Sequence

from lsgd.job.command import run_alone
from lsgd.job.launcher import Launch, environment_of
from lsgd.supervise.lives import read_lives, run_lives
from lsgd.supervise.seat import Seat
from lsgd.supervise.signals import catch_stop_signals

HERE = "127.0.0.1"


class LocalSeats:
    """The places of all processes of a job on this machine."""

    def __init__(self, size: int, command: Sequence[str]) -> None:
        self.seats = [Seat(command, uuid.uuid4().hex) for _ in range(size)]
        self.port = free_port()

    def run(self, rank: int, life: int) -> int:
        """Start this process and wait for its end; returns its exit code, negative for a signal."""
        size = len(self.seats)
        launch = Launch("torchrun", rank, size, rank, size, HERE, self.port, life)
        process = self.seats[rank].start(environment_of(launch))
        return process.wait() if process else -signal.SIGTERM

    def send(self, number: int) -> None:
        """Send every process a signal; from now on none is started."""
        for seat in self.seats:
            seat.send(number)

    def clear(self) -> None:
        """End what the processes have left behind."""
        for seat in self.seats:
            seat.clear()


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    return port


def run_singly(argv: Sequence[str]) -> int:
    """Run the command of these words to its end; returns the exit code of the job."""
    size, command = read_lives("lsgd.supervise.singly", __doc__ or "", argv)
    seats = LocalSeats(size, command)
    try:
        return run_lives(seats, size, command, catch_stop_signals())
    finally:
        seats.clear()


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: run_singly(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
