"""The backends that train the runs of a search: this machine, the queue of Slurm, or Spark."""

import re
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lsgd.errors import UsageError
from lsgd.planned import PlannedRun, RunLauncher, attempt_run, submit_run
from lsgd.search.trial import StopRequest
from lsgd.supervise.verdict import ExitSummary

POLL = 1.0
"""Seconds between two queries to a cluster."""
PATIENCE = 600.0
"""Seconds for which a failing squeue is retried before the run is refused."""


class TrialBackend(Protocol):
    """The interface of the backends that train a search's runs: local, Slurm or Spark."""

    def open(self, folder: Path, jobs: int, *, prunes: bool) -> AbstractContextManager[None]:
        """Set up the backend within this context for up to `jobs` runs at a time of a search.

        Raises UsageError if the backend is unusable, or if the search `prunes` and the backend
        cannot stop a run. By default there is nothing to set up.
        """
        return nullcontext()

    def train(
        self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]
    ) -> ExitSummary | None:
        """Start or resume a search's run, wait for its processes to end, and return how they ended.

        When `stop` requests it, the run first saves a checkpoint. Returns None if another process
        has trained the run meanwhile, or if the search exits and a cluster continues the run.
        Raises SupervisorLockedError if another process is training it, UsageError or OSError if it
        cannot be started.
        """


@dataclass(frozen=True)
class LocalBackend(TrialBackend):
    """The backend that starts each run of a search through a launcher and supervises it here."""

    launcher: RunLauncher

    def train(
        self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]
    ) -> ExitSummary | None:
        """Launch or resume a search's run and supervise it to its end; see TrialBackend.train."""
        return attempt_run(self.launcher, trial, stop, say)


@dataclass(frozen=True)
class SlurmBackend(TrialBackend):
    """The backend that submits a search's runs to Slurm's queue, where they outlive the search."""

    launcher: RunLauncher

    def train(
        self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]
    ) -> ExitSummary | None:
        """Submit a run to Slurm, or find its job, and wait for its end; see TrialBackend.train."""
        _queued(trial)
        say(submit_run(self.launcher, trial))
        job = trial.job_id
        assert job, "submit_one has found its number"
        told = False
        while _queued(trial):
            if stop.search_signals:
                return None
            if stop.prune_signals and not told:
                told = True
                _tell_to_leave(job)
            time.sleep(POLL)
        return ExitSummary(*_outcome(job))


def _queued(trial: PlannedRun) -> str | None:
    """Return the pending or running Slurm job of a run, retrying squeue; None if there is none.

    Raises UsageError once squeue has failed for PATIENCE seconds.
    """
    began = time.monotonic()
    while True:
        try:
            return trial.active_job
        except UsageError:
            if time.monotonic() - began > PATIENCE:
                raise
        time.sleep(POLL)


def _tell_to_leave(job: str) -> None:
    """Make a Slurm job save a checkpoint and exit without requeue; cancel it if it is pending."""
    for command in (
        ["scontrol", "update", f"JobId={job}", "Requeue=0"],
        ["scancel", "--state=PENDING", job],
        ["scancel", "--signal=TERM", job],  # the signal goes to the job's steps
    ):
        # A job that has just ended makes these fail, which does no harm.
        subprocess.run(command, capture_output=True)


def _outcome(job: str) -> tuple[int, str]:
    """Return the exit code and a description of the final state of a Slurm job that has ended."""
    question = ["scontrol", "show", "job", "--oneliner", job]
    answer = subprocess.run(question, capture_output=True, text=True).stdout
    state = re.search(r"JobState=(\w+)", answer)
    code = re.search(r"ExitCode=(\d+):(\d+)", answer)
    if not state or not code:
        return 1, f"job {job} is no longer known to Slurm"
    return int(code[1]) or int(code[2] != "0"), f"job {job} is {state[1]}"


def backend_for(launcher: RunLauncher) -> TrialBackend:
    """Return the backend that trains a search's runs through this launcher.

    Raises UsageError for Kubernetes, whose jobs a search cannot watch, and if Spark's requirements
    are missing.
    """
    if launcher.name == "k8s":
        raise UsageError(
            "a search cannot follow jobs on Kubernetes, whose runs are in the claim; start the "
            "search itself in a pod that has the claim, with --launch local"
        )
    if launcher.name == "spark":
        # Imported here, since the other backends work without it.
        from lsgd.search.spark import SparkBackend

        return SparkBackend(launcher)
    return SlurmBackend(launcher) if launcher.name == "slurm" else LocalBackend(launcher)
