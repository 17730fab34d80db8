"""The slot in which one process of a job runs on this machine, one start after another."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Lock

from lsgd.errors import UsageError
from lsgd.job.ending import GRACE, cleanup_process, end_tagged
from lsgd.job.system import Tag

SLOT_VARIABLE = "LSGD_SEAT"
"""The environment variable whose value distinguishes the slots of all jobs."""


class ProcessSlot:
    """A slot for one process of a job, which starts it, signals it, and ends all its descendants.

    No slot of any other job has its `name`, but a slot that replaces it on this machine does, and
    finds by it the processes that the first has left running.
    """

    def __init__(self, command: Sequence[str], name: str) -> None:
        self.command = command
        self._tag: Tag = (SLOT_VARIABLE, name)
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_end = False

    def start(
        self, environment: Mapping[str, str], *, output: int | None = None
    ) -> "subprocess.Popen[bytes] | None":
        """Start the process of this slot and return it, or None if a signal was sent to the slot.

        It gets these environment variables in addition. Processes left by an earlier start, such as
        loader processes, are killed first. The output goes to `output`, a descriptor, by default to
        this process's own. Raises UsageError if the program does not exist.
        """
        end_tagged(self._tag, 0)
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
                raise UsageError(
                    f"{self.command[0]} cannot be started ({error.strerror}); write the path of "
                    "an existing program"
                ) from None
            return self._process

    def guarded(self) -> AbstractContextManager[None]:
        """Let a helper end the slot's processes after this context, even if this one is killed."""
        return cleanup_process(self._tag)

    def send(self, number: int) -> None:
        """Send a signal to this slot's process, and start no further process in the slot."""
        with self._lock:
            self._asked_to_end = True
            if self._process:
                self._process.send_signal(number)

    def clear(self) -> None:
        """End all processes that this slot's process has left running."""
        end_tagged(self._tag, GRACE)
