"""Signals by which somebody asks the supervisor to end."""

import signal

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def catch_stop_signals() -> list[int]:
    """The numbers of the signals to end this process; the list grows as they are received."""
    received: list[int] = []
    for number in (signal.Signals[name] for name in NAMES):
        # nohup ignores one of them.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: received.append(number))
    return received
