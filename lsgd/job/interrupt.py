"""Ctrl-C while a command is still importing, which takes seconds: one line and exit code 130.

An exception would end the imports with a traceback, or be taken by one of them for a missing
module.
"""

import os
import signal
import threading


def exit_on_interrupt() -> None:
    """Make Ctrl-C exit this process at once from now on, since it has nothing to save yet."""
    if threading.current_thread() is not threading.main_thread():
        return
    # A shell's background job ignores SIGINT and keeps ignoring it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def restore_keyboard_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, if exit_on_interrupt has changed that."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    try:
        from lsgd.job.launcher import detect_launch

        first = detect_launch().rank == 0
    except Exception:  # the module is half imported, or the launcher is not recognised
        first = True
    if first:
        os.write(2, b"\nlsgd: interrupted\n")
    os._exit(130)


def forget_interrupt() -> None:
    """Let this process end with its own exit code after a caught KeyboardInterrupt.

    Python marks one that has escaped from a string given to exec, as in dataclasses, and then ends
    the process by SIGINT whatever its exit code. Another exec clears the mark.
    """
    exec("")
