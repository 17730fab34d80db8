"""The signals that ask the supervisor to stop."""

import signal

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def catch_stop_signals() -> list[int]:
    """Catch SIGINT, SIGTERM and the like; return a list to which each received one is appended."""
    received: list[int] = []
    for number in (signal.Signals[name] for name in NAMES):
        # nohup sets SIGHUP to be ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: received.append(number))
    return received
