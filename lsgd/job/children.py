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

from lsgd.job.ending import GRACE, end_tagged
from lsgd.job.system import Tag

OURS: Tag = ("LSGD_PARENT", uuid.uuid4().hex)
"""The tag of all processes that this module starts."""
CHILD = "LSGD_CHILD"
"""The environment variable whose value distinguishes the children of this process."""

_children = count()
_closed = Event()


class Child:
    """A running child process, its descendants, and the file that collects their output."""

    def __init__(self, process: subprocess.Popen[bytes], tag: Tag, output: BinaryIO) -> None:
        self.process, self._tag, self._output = process, tag, output

    def wait(self, limit: float) -> int | None:
        """Wait up to `limit` seconds for the child's end; return its exit code, or None."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> str:
        """End the child process and all its descendants; return their whole output as text."""
        if end_tagged(self._tag, GRACE):
            self.process.poll()
        else:
            self.process.kill()
            self.process.wait()
        self._output.seek(0)
        return self._output.read().decode(errors="replace")


@contextmanager
def running_child(
    command: Sequence[str], *, environment: Mapping[str, str] = {}
) -> Iterator[Child]:
    """Run a command as a child process within this context, then end it and its descendants."""
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


def run_with_limit(
    command: Sequence[str], *, limit: float, environment: Mapping[str, str] = {}
) -> tuple[int | None, str]:
    """Run a command with a time limit; return its exit code and output.

    The exit code is None if the command had not ended after `limit` seconds. When this returns or
    raises, the command and all its descendants have ended.
    """
    try:
        with running_child(command, environment=environment) as child:
            code = None if _closed.is_set() else child.wait(limit)
            return code, child.stop()
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"


def end_children() -> None:
    """End all child processes started by this module, and let later ones end at once."""
    _closed.set()
    end_tagged(OURS, GRACE)


def describe_failure(code: int | None, text: str, limit: float) -> str:
    """Describe how a process failed, from its exit code (None for a timeout) and its output."""
    message = telling_line(text)
    if code is not None and code >= 0:
        return message or f"it exited with code {code} without a message"
    how = f"it did not end in {limit:g} s"
    if code is not None:
        how = f"it crashed with {signal.Signals(-code).name}"
    return f"{how} ({message})" if message else how


def telling_line(text: str) -> str:
    """Return the line of a failed program's output that best says why it failed.

    It is the earliest line of a crash, else of an exception, else the first with text, since
    launchers add an exception of their own.
    """
    # Without the prefixes of horovodrun and torch's C++ logging.
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
