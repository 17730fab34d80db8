"""How long the rest of an epoch and of a run takes, estimated from the steps made so far."""

from collections import deque

WINDOW = 60.0
"""The seconds of training whose speed is extrapolated: enough to average, and a change shows."""


class RemainingTime:
    """Estimates the time left of an epoch and of a run at the speed of the last minute.

    Positions are steps of the run, as numbers with a fraction: a step of many passes takes long.
    Times come from the caller's clock, in seconds.
    """

    def __init__(self) -> None:
        self.seconds_per_step: float | None = None
        """None until two positions of one epoch are known."""
        self.seconds_per_evaluation = 0.0
        """The duration of the last evaluation; 0 before the first."""
        self._seen: deque[tuple[float, float]] = deque()
        self._evaluating_since: float | None = None

    def start_epoch(self) -> None:
        """Forget the positions so far: an evaluation and a checkpoint lie between two epochs."""
        self._seen.clear()

    def update(self, now: float, position: float) -> None:
        """Note that training has come to this position."""
        self._seen.append((now, position))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        began, first = self._seen[0]
        if position > first:
            self.seconds_per_step = (now - began) / (position - first)

    def start_evaluation(self, now: float) -> None:
        """Note that an evaluation of one or several sets begins, unless it has begun already."""
        if self._evaluating_since is None:
            self._evaluating_since = now

    def end_evaluation(self, now: float) -> None:
        """Note that the evaluation is over, if there was one."""
        if self._evaluating_since is not None:
            self.seconds_per_evaluation = now - self._evaluating_since
        self._evaluating_since = None

    def seconds(self, steps: float, evaluations: int = 0) -> float | None:
        """Return the time that so many steps and evaluations take; None while it is unknown."""
        if self.seconds_per_step is None:
            return None
        return steps * self.seconds_per_step + evaluations * self.seconds_per_evaluation


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(42.4), duration(200), duration(10_000), duration(1e6)
    ('42 s', '3 min', '2 h 47 min', '11.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds >= 2 * 24 * 3600:
        return f"{seconds / 24 / 3600:.1f} days"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
