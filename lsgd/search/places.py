"""Where the trials of a search are trained: by this process, or in the queue of a cluster."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

from lsgd.errors import Refused
from lsgd.supervise.verdict import Ending
from lsgd.trials.attempt import attempt
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.queue import submit_one
from lsgd.trials.trial import Trial

POLL = 1.0
"""Seconds between questions to a cluster."""


@dataclass
class Stop(Sequence[int]):
    """Why a trial is to save and leave: as signals, of which more may come while it is trained."""

    leaving: Sequence[int]
    """Those that the search itself has received."""
    pruned: list[int] = field(default_factory=list)
    """One, if the trial is not worth finishing."""

    def __len__(self) -> int:
        return len(self.leaving) + len(self.pruned)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return [*self.pruned, *self.leaving][index]

    def prune(self) -> None:
        """Tell the trial to leave, once."""
        if not self.pruned:
            self.pruned.append(signal.SIGTERM)


class Place(Protocol):
    """Where trials are trained; each is trained in a thread of its own."""

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

    def train(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> Ending | None:
        """As Place has it."""
        return attempt(self.launcher, trial, stop, say)


@dataclass(frozen=True)
class SlurmQueue:
    """In the queue of Slurm, which goes on with what it has when the search leaves."""

    launcher: TrialLauncher

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
    """Where this launcher has trials trained; raises Refused where nobody sees what they do."""
    if launcher.name == "k8s":
        raise Refused(
            "a search does not see what becomes of jobs on Kubernetes, whose runs lie in the "
            "claim; start the search itself in a pod that has the claim, with --launch local"
        )
    return SlurmQueue(launcher) if launcher.name == "slurm" else Here(launcher)
