"""Waits for a condition or a line, with a time limit for busy machines."""

import threading
import time
from collections.abc import Callable
from subprocess import Popen
from typing import AnyStr


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    """Wait until a condition is true; fail after `seconds`.

    The default is below the time limit of a mutation test, so that a hanging test fails first.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_line(process: Popen[AnyStr], seconds: float = 900) -> AnyStr:
    """Return the next line of a process's output; kill a hanging process, which ends the read."""
    assert process.stdout
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    try:
        return process.stdout.readline()
    finally:
        limit.cancel()
