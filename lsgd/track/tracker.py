"""A run as a tracker has it, and the choice of the library that reaches it."""

from collections.abc import Sequence
from typing import Protocol

from lsgd.track.about import About, Conclusion
from lsgd.track.steps import TrackedStep


class Tracker(Protocol):
    """A run at a tracker, found by its id or made; a tracker that is down raises what its library
    likes, and the run is to be opened anew then."""

    where: str
    """Where people find it."""

    def last_step(self) -> int:
        """The last step that the tracker has; 0 if none."""

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Send some steps, which come after all that were sent; each arrives whole or not."""

    def end(self, conclusion: Conclusion) -> None:
        """Say how far the run has come, and let everything arrive."""


def open_tracker(name: str, about: About) -> Tracker:
    """The run at the tracker of this name; raises ImportError if its library is not installed."""
    if name == "mlflow":
        from lsgd.track.mlflow import MlflowRun

        return MlflowRun(about)
    from lsgd.track.wandb import WandbRun

    return WandbRun(about)
