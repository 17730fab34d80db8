"""Child processes that may crash or hang: each has a time limit, and none is left running."""

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from tempfile import TemporaryFile
from threading import Event
from typing import BinaryIO

from lsgd.job.ending import Tag, end

OURS: Tag = ("LSGD_PARENT", uuid.uuid4().hex)
"""The tag of all processes that this module starts."""
CHILD = "LSGD_CHILD"
"""The environment variable whose value distinguishes the children of this process."""
GRACE = 3.0
"""Seconds that a process has between SIGTERM and SIGKILL."""

_children = count()
_closed = Event()


class Child:
    """A process that was started, and all that it has started."""

    def __init__(self, process: subprocess.Popen[bytes], tag: Tag, output: BinaryIO) -> None:
        self.process, self._tag, self._output = process, tag, output

    def wait(self, limit: float) -> int | None:
        """The exit code; None if the process has not ended after `limit` seconds."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> str:
        """End the process and all that it has started; returns what they have printed."""
        if end(self._tag, GRACE):
            self.process.poll()
        else:
            self.process.kill()
            self.process.wait()
        self._output.seek(0)
        return self._output.read().decode(errors="replace")


@contextmanager
def started(command: Sequence[str], *, environment: Mapping[str, str] = {}) -> Iterator[Child]:
    """The command, running; afterwards it and all that it has started have ended."""
    tag = (CHILD, f"{OURS[1]}-{next(_children)}")
    with TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            env=os.environ | environment | dict([OURS, tag]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C reaches the caller alone
        )
        child = Child(process, tag, output)
        try:
            yield child
        finally:
            child.stop()


def finished(
    command: Sequence[str], *, limit: float, environment: Mapping[str, str] = {}
) -> tuple[int | None, str]:
    """Exit code of a command, None if it had not ended after `limit` seconds, and what it printed.

    When this returns or raises, the command and all that it has started have ended.
    """
    try:
        with started(command, environment=environment) as child:
            code = None if _closed.is_set() else child.wait(limit)
            return code, child.stop()
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"


def close() -> None:
    """End every process that was started; what a thread is just about to start ends at once."""
    _closed.set()
    end(OURS, GRACE)


def failure(code: int | None, text: str, limit: float) -> str:
    """How a process failed, from its exit code (None if it was ended) and its output."""
    message = telling_line(text)
    if code is not None and code >= 0:
        return message or f"it ended with exit code {code} and said nothing"
    how = f"it did not end in {limit:g} s"
    if code is not None:
        how = f"it crashed with {signal.Signals(-code).name}"
    return f"{how} ({message})" if message else how


def telling_line(text: str) -> str:
    """The line of a program's output that says why it failed: a crash, an exception, or the first.

    Of several the earliest, since launchers add an exception of their own.
    """
    # Without what horovodrun and torch's C++ parts put in front.
    lines = [
        re.sub(r"^(\[\d+\]<std\w+>:|\[[IWEF]\d+ [^]]*\]|\s)+", "", x) for x in text.splitlines()
    ]
    for telling in (
        r"Segmentation fault|Aborted|Bus error",
        r"[\w.]*(Error|Exception)\b",
        r".*[a-z]",
    ):
        for line in lines:
            if re.match(telling, line):
                return line.strip()[:160]
    return ""
