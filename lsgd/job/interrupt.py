"""Ctrl-C while a command is still being imported, which takes seconds: one line and exit code 130.

An exception would end the imports with a traceback, or be taken by one of them for a missing part.
"""

import os
import signal
import threading


def leave_at_once() -> None:
    """From now on Ctrl-C ends this process where it stands, which has nothing to save yet."""
    if threading.current_thread() is not threading.main_thread():
        return
    # A shell's background job ignores it, and goes on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From now on Ctrl-C is KeyboardInterrupt, if leave_at_once has changed that."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    try:
        from lsgd.job.launcher import detect

        first = detect().rank == 0
    except Exception:  # it is half imported itself, or no launcher is understood
        first = True
    if first:
        os.write(2, b"\nlsgd: interrupted\n")
    os._exit(130)
