"""The backends that train the runs of a search: this machine, a job of Slurm, or Spark."""

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lsgd.errors import PreemptedError, UsageError, converting_disk_full
from lsgd.launch.slurm import write_job_record
from lsgd.override_syntax import format_override
from lsgd.planned import PlannedRun, RunLauncher, attempt_run
from lsgd.recipe import Recipe
from lsgd.search.trial import StopRequest
from lsgd.supervise.verdict import ExitSummary


class TrialBackend(Protocol):
    """The interface of the backends that train a search's runs: local, a Slurm job or Spark."""

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
        has trained the run meanwhile.
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
class JobStepLauncher(RunLauncher):
    """A launcher of planned runs as steps of the Slurm job in which this process is."""

    step: tuple[str, ...]
    """The command of a step that trains, up to the overrides of lsgd.train."""

    def command(self, trial: PlannedRun) -> list[str]:
        """Return the srun command that starts or resumes a planned run."""
        recipe = format_override("+recipe", trial.recipe_argument)
        return [*self.step, recipe, *trial.overrides, format_override("run_dir", trial.folder)]

    def fit(self, recipe: Recipe) -> tuple[int, dict[str, str]]:
        """Return the number of processes of a step, which is that of the job; and no options."""
        return int(os.environ.get("SLURM_NTASKS", 1)), self.options


@dataclass(frozen=True)
class JobStepBackend(LocalBackend):
    """The backend that trains a search's runs as steps of the Slurm job in which the search is."""

    signals: list[int]
    """The stop signals of the search, which a preempted run adds to."""

    def train(
        self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]
    ) -> ExitSummary | None:
        """Train a run to its end or until Slurm preempts the job; see TrialBackend.train."""
        if "SLURM_JOB_ID" in os.environ:
            with converting_disk_full(trial.folder):
                write_job_record(trial.folder, trial.log_path)
        ending = super().train(trial, stop, say)
        if ending and ending.code == PreemptedError.exit_code and not stop:
            # Slurm signals the step alone before the time limit. The requeued job resumes the run.
            self.signals.append(signal.SIGUSR2)
        return ending


def backend_for(launcher: RunLauncher) -> TrialBackend:
    """Return the backend that trains a search's runs through this launcher.

    Raises UsageError for Kubernetes, whose jobs a search cannot watch, and if Spark's requirements
    are missing. On Slurm, jobs have a backend of their own, JobStepBackend.
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
    return LocalBackend(launcher)
