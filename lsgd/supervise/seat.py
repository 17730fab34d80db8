"""Where one process of a job runs on this machine: one life of it after another, never two."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from lsgd.errors import Refused
from lsgd.job.ending import Tag, end
from lsgd.job.members import GRACE

SEAT = "LSGD_SEAT"
"""The environment variable whose value distinguishes the seats of all jobs."""


class Seat:
    """The place of one process: it is started here, gets signals here, and nothing of it stays.

    No other seat of any job has its `name`, but one that takes its place on this machine does, and
    finds by it what the first has left.
    """

    def __init__(self, command: Sequence[str], name: str) -> None:
        self.command = command
        self._tag: Tag = (SEAT, name)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_end = False

    def start(
        self, environment: Mapping[str, str], *, output: int | None = None
    ) -> "subprocess.Popen[bytes] | None":
        """Start the process with these variables besides; None once a signal was sent here.

        What an earlier life has left, such as loader processes, is killed first. What the process
        prints goes to `output`, a descriptor, by default where this process prints. Raises Refused
        if there is no such program.
        """
        end(self._tag, 0)
        with self._lock:
            if self._asked_to_end:
                return None
            try:
                self._process = subprocess.Popen(
                    self.command,
                    env=os.environ | environment | dict([self._tag]),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=None if output is None else subprocess.STDOUT,
                    start_new_session=True,  # so that Ctrl-C reaches the launcher alone
                )
            except OSError as error:
                raise Refused(
                    f"{self.command[0]} cannot be started ({error.strerror}); write the path of a "
                    "program that is there"
                ) from None
            return self._process

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Within this context nothing of the process outlives this one, even if it is killed."""
        helper = subprocess.Popen(
            [sys.executable, "-m", "lsgd.job.ending", *self._tag, str(GRACE)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        with helper:  # the end of the pipe, whoever closes it, makes it end what is left
            yield

    def send(self, number: int) -> None:
        """Send the process a signal; from now on no other is started here."""
        with self._lock:
            self._asked_to_end = True
            if self._process:
                self._process.send_signal(number)

    def clear(self) -> None:
        """End what the process has left behind."""
        end(self._tag, GRACE)
