"""The interface of a run at a tracker, and the choice of the library."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lsgd.track.run_info import RunOutcome, TrackedRunInfo
from lsgd.track.steps import TrackedStep


class Tracker(Protocol):
    """The interface of a run at an experiment tracker, found by its id or created.

    If the tracker is down, the methods raise any error of its library; the caller then opens the
    run again.
    """

    address: str
    """The address or folder at which people find the run."""

    def last_step(self) -> int:
        """Return the last training step whose metrics the tracker has, or 0."""

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Send the metrics of training steps after the last one sent, each step atomically."""

    def finish(self, conclusion: RunOutcome) -> None:
        """Send the training run's outcome and wait until the tracker has all data."""


def open_tracker(name: str, about: TrackedRunInfo) -> Tracker:
    """Open a run at MLflow or Weights & Biases; raise ImportError if its library is missing."""
    try:
        Path.home()
    except RuntimeError:
        # A user without an entry in the system's list, as in a container; the libraries need HOME.
        os.environ["HOME"] = str(about.folder)
    if name == "mlflow":
        from lsgd.track.mlflow import MlflowRun

        return MlflowRun(about)
    from lsgd.track.wandb import WandbRun

    return WandbRun(about)
