"""The Weights & Biases tracker, whose own local process buffers the data that are not sent yet."""

import os
from collections.abc import Sequence
from pathlib import Path

import wandb

from lsgd.errors import UsageError
from lsgd.track.run_info import RunOutcome, TrackedRunInfo
from lsgd.track.steps import TrackedStep

PROJECT = "lsgd"
"""The default project; WANDB_PROJECT overrides it."""


class WandbRun:
    """A run at Weights & Biases, created or continued, to which a training run's data are sent.

    Offline (WANDB_MODE=offline) the last step is unknown: each call writes all steps again, into
    a new folder with the same id, and `wandb sync` uses the newest folder for the run.
    """

    def __init__(self, about: TrackedRunInfo) -> None:
        self._run = wandb.init(
            id=about.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=about.name,
            dir=os.environ.get("WANDB_DIR") or str(about.folder),
            config=about.config | {"run": about.tags},
            # Output and machine load of this process say nothing about the training run.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        if self._run.disabled:
            raise UsageError(
                "Weights & Biases is disabled, so nothing would be sent; write "
                "WANDB_MODE=offline before the command to keep the run on this machine, or "
                "WANDB_MODE=online"
            )
        offline = self._run.offline
        self.address = str(Path(self._run.dir).parent if offline else self._run.url)

    def last_step(self) -> int:
        """Return the last training step whose metrics Weights & Biases has, or 0."""
        return int(max(0, self._run.starting_step - 1))

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Send the metrics of training steps to Weights & Biases, which skips known steps."""
        for step in steps:
            self._run.log(step.values, step=step.number, commit=True)

    def finish(self, conclusion: RunOutcome) -> None:
        """Send the training run's outcome as a summary value; wait until all data have arrived."""
        self._run.summary["outcome_in_words"] = conclusion.text
        self._run.finish(exit_code=0 if conclusion.finished else 1)
