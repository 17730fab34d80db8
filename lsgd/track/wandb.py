"""Runs at Weights & Biases, whose own process on this machine keeps what it has not yet sent."""

import os
from collections.abc import Sequence
from pathlib import Path

import wandb

from lsgd.track.about import About, Conclusion
from lsgd.track.steps import TrackedStep

PROJECT = "lsgd"
"""The project, unless WANDB_PROJECT says another."""


class WandbRun:
    """A run at Weights & Biases.

    Offline (WANDB_MODE=offline) nothing can be asked: each time all steps are written anew, into
    another folder under the same id, of which `wandb sync` takes the newest for the run.
    """

    def __init__(self, about: About) -> None:
        self._run = wandb.init(
            id=about.id,
            resume="allow",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=about.name,
            dir=os.environ.get("WANDB_DIR", str(about.folder)),
            config=about.config | {"run": about.tags},
            # Of what this process prints, and how busy it is, nobody wants to know.
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )
        offline = self._run.offline
        self.where = str(Path(self._run.dir).parent if offline else self._run.url)

    def last_step(self) -> int:
        """The step before the first that it would take."""
        return int(max(0, self._run.starting_step - 1))

    def send(self, steps: Sequence[TrackedStep]) -> None:
        """Hand them over; what has a step that it has already is left out by wandb itself."""
        for step in steps:
            self._run.log(step.values, step=step.number, commit=True)

    def end(self, conclusion: Conclusion) -> None:
        """Note the outcome, and wait until everything has arrived."""
        self._run.summary["outcome_in_words"] = conclusion.text
        self._run.finish(exit_code=0 if conclusion.finished else 1)
