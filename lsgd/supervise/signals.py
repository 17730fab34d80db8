"""Signals by which somebody asks the supervisor to end."""

import signal
from types import FrameType


class StopSignals:
    """How many signals to end this process has received, and which was the last."""

    NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        """Number of the last signal; 0 before any."""
        for number in (signal.Signals[name] for name in self.NAMES):
            # nohup ignores one of them.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count, self.last = self.count + 1, number
