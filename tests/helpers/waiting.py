"""Waits for a condition or a line, with a time limit for busy machines."""

import threading
import time
from collections.abc import Callable, Iterator
from subprocess import Popen
from typing import AnyStr


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    """Wait until a condition is true; fail after `seconds`.

    The default is below the time limit of a mutation test, so that a hanging test fails first.
    """
    deadline = time.monotonic() + seconds
    for is_met in polls(condition, 0.01):
        assert is_met or time.monotonic() < deadline


def polls(condition: Callable[[], object], interval: float) -> Iterator[bool]:
    """Yield whether a condition is true, until it is; sleep at least `interval` seconds between.

    A condition that takes long, such as a look at all processes of the machine, is polled less
    often: it gets at most a fifth of a core.
    """
    while True:
        begin = time.process_time()
        is_met = bool(condition())
        yield is_met
        if is_met:
            return
        time.sleep(max(interval, 4 * (time.process_time() - begin)))


def read_line(process: Popen[AnyStr], seconds: float = 900) -> AnyStr:
    """Return the next line of a process's output; kill a hanging process, which ends the read."""
    assert process.stdout
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    try:
        return process.stdout.readline()
    finally:
        limit.cancel()
