"""Signals to a command that has nothing to save yet: one line, and 130 for Ctrl-C, 75 if preempted.

An exception would end the imports, which take seconds, with a traceback, or be taken by one of them
for a missing module.
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


def exit_on_preemption() -> None:
    """Make SIGUSR1 and SIGUSR2 end a training with exit code 75 until it defers stop signals.

    A scheduler sends them before a time limit or a preemption, also to a job that still imports
    libraries, copies its dataset to the machine or times its steps, and starts it again after this
    exit code. SIGTERM keeps its effect, since launchers end the other processes of a failed job
    with it.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _leave)


def restore_keyboard_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again, if exit_on_interrupt has changed that."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, _: object) -> None:
    try:
        from lsgd.job.launcher import detect_launch

        first = detect_launch().rank == 0
    except Exception:  # the module is half imported, or the launcher is not recognised
        first = True
    code, line = (130, b"\nlsgd: interrupted\n")
    if number != signal.SIGINT:
        code, line = 75, b"lsgd: preempted before the first step; rerun the same command\n"
    if first:
        os.write(2, line)
    os._exit(code)


def forget_interrupt() -> None:
    """Let this process end with its own exit code after a caught KeyboardInterrupt.

    Python marks one that has escaped from a string given to exec, as in dataclasses, and then ends
    the process by SIGINT whatever its exit code. Another exec clears the mark.
    """
    exec("")
