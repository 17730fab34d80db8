"""A wait for a condition, with a time limit for busy machines."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    """Wait until a condition is true; fail after `seconds`.

    The default is below the time limit of a mutation test, so that a hanging test fails first.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
