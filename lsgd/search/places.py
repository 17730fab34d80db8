"""Where the trials of a search are trained: by this process, in Slurm's queue, or on Spark."""

import re
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lsgd.errors import Refused
from lsgd.search.stop import Stop
from lsgd.supervise.verdict import Ending
from lsgd.trials.attempt import attempt
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.queue import submit_one
from lsgd.trials.trial import Trial

POLL = 1.0
"""Seconds between questions to a cluster."""


class Place(Protocol):
    """Where trials are trained; each is trained in a thread of its own."""

    def open(self, folder: Path, jobs: int, *, prunes: bool) -> AbstractContextManager[None]:
        """Within this context it can train so many trials at a time of the search in `folder`.

        Raises Refused where it cannot, or where trials cannot be told to leave and the search
        `prunes`.
        """

    def train(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> Ending | None:
        """Start the trial, or go on with it, and wait until all its processes have ended.

        Where it is told to stop, the run saves and leaves first. None if another process has
        trained it meanwhile, or if the search leaves and a cluster goes on with it. Raises Taken if
        another process trains it now, Refused and OSError if it cannot be started.
        """


@dataclass(frozen=True)
class Here:
    """By a launcher that this process starts and watches."""

    launcher: TrialLauncher

    def open(self, folder: Path, jobs: int, *, prunes: bool) -> AbstractContextManager[None]:
        """As Place has it."""
        return nullcontext()

    def train(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> Ending | None:
        """As Place has it."""
        return attempt(self.launcher, trial, stop, say)


@dataclass(frozen=True)
class SlurmQueue:
    """In the queue of Slurm, which goes on with what it has when the search leaves."""

    launcher: TrialLauncher

    def open(self, folder: Path, jobs: int, *, prunes: bool) -> AbstractContextManager[None]:
        """As Place has it."""
        return nullcontext()

    def train(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> Ending | None:
        """As Place has it."""
        say(submit_one(self.launcher, trial))
        job = trial.submitted
        assert job, "submit_one has found its number"
        told = False
        while trial.queued:
            if stop.leaving:
                return None
            if stop.pruned and not told:
                told = True
                _tell_to_leave(job)
            time.sleep(POLL)
        return Ending(*_outcome(job))


def _tell_to_leave(job: str) -> None:
    """Make the job save and end, and not be queued again; one that waits is cancelled."""
    for command in (
        ["scontrol", "update", f"JobId={job}", "Requeue=0"],
        ["scancel", "--state=PENDING", job],
        ["scancel", "--signal=TERM", job],  # to its steps
    ):
        # Whatever a job that has just ended makes them say.
        subprocess.run(command, capture_output=True)


def _outcome(job: str) -> tuple[int, str]:
    """The exit code and the last state of a job that is no longer in the queue."""
    question = ["scontrol", "show", "job", "--oneliner", job]
    answer = subprocess.run(question, capture_output=True, text=True).stdout
    state = re.search(r"JobState=(\w+)", answer)
    code = re.search(r"ExitCode=(\d+):(\d+)", answer)
    if not state or not code:
        return 1, f"job {job} is not known to Slurm any more"
    return int(code[1]) or int(code[2] != "0"), f"job {job} is {state[1]}"


def place_for(launcher: TrialLauncher) -> Place:
    """Where this launcher has trials trained.

    Raises Refused where nobody sees what they do, and without what Spark needs.
    """
    if launcher.name == "k8s":
        raise Refused(
            "a search does not see what becomes of jobs on Kubernetes, whose runs lie in the "
            "claim; start the search itself in a pod that has the claim, with --launch local"
        )
    if launcher.name == "spark":
        # Only now, for the others do without it.
        from lsgd.search.spark import OnSpark

        return OnSpark(launcher)
    return SlurmQueue(launcher) if launcher.name == "slurm" else Here(launcher)
