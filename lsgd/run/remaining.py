"""The estimate of the time left of an epoch and of a run, from the steps made so far."""

from collections import deque
from itertools import pairwise

from lsgd.recipe import Recipe

WINDOW = 60.0
"""The seconds of training whose speed is extrapolated: enough to average, and adaptive."""


class RemainingTime:
    """The estimator of the time left of an epoch and of a run, from the speed of the last minute.

    Positions are steps of the run with a fraction, since a step of many micro-batches takes long.
    Times come from the caller's clock, in seconds.
    """

    def __init__(self) -> None:
        self.seconds_per_step: float | None = None
        """The measured seconds per step; None until two positions of one epoch are known."""
        self.seconds_per_evaluation = 0.0
        """The duration of the last evaluation in seconds; 0 before the first."""
        self._seen: deque[tuple[float, float]] = deque()
        self._evaluating_since: float | None = None

    def start_training(self) -> None:
        """Restart the measurement of speed, so that a pause does not count as slow steps."""
        self._seen.clear()

    def update(self, now: float, position: float) -> None:
        """Record which step training has reached at this time, and measure the seconds per step."""
        self._seen.append((now, position))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        began, first = self._seen[0]
        if position > first:
            self.seconds_per_step = (now - began) / (position - first)

    def start_evaluation(self, now: float) -> None:
        """Record the start of an evaluation of one or several sets, unless one is in progress."""
        if self._evaluating_since is None:
            self._evaluating_since = now

    def end_evaluation(self, now: float) -> None:
        """Record the end of an evaluation, and its duration, if one is in progress."""
        if self._evaluating_since is not None:
            self.seconds_per_evaluation = now - self._evaluating_since
        self._evaluating_since = None

    def seconds(self, steps: float, evaluations: int = 0) -> float | None:
        """Estimate the seconds for this many training steps and evaluations; None while unknown."""
        if self.seconds_per_step is None:
            return None
        return steps * self.seconds_per_step + evaluations * self.seconds_per_evaluation


def equal_steps_left(recipe: Recipe, step: int) -> float:
    """Estimate the training left in a run, as a number of steps with this step's batch and images.

    The work of a convolutional network is in proportion to them. Later epochs may have another
    minibatch or image size; without that it is the number of steps.
    """
    steps, _ = recipe.work_left(step)
    if recipe.rehearse or not recipe.has_phases or not steps:
        return steps

    def work(epoch: int) -> int:
        return recipe.stage(epoch).batch_size * recipe.training_size(epoch) ** 2

    now = recipe.locate_step(step)[0]
    bounds = [step, *map(recipe.first_step, range(now + 1, recipe.epochs + 1))]
    works = [work(epoch) for epoch in range(now, recipe.epochs)]
    made = (end - begin for begin, end in pairwise(bounds))
    return sum(count * each for count, each in zip(made, works, strict=True)) / works[0]


def duration(seconds: float) -> str:
    """Format a number of seconds as text for people, such as 2 h 47 min.

    >>> duration(42.4), duration(200), duration(10_000), duration(1e6)
    ('42 s', '3 min', '2 h 47 min', '11.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds >= 2 * 24 * 3600:
        return f"{seconds / 24 / 3600:.1f} days"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
