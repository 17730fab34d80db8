"""A planned run of one recipe and seed: its run folder, cluster job and state."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lsgd.errors import UsageError
from lsgd.recipe import Recipe
from lsgd.run.read import NotARunError, Run, planned_run_folder, read_run

FORBIDDEN_KEYS = {
    "name": "a run has the name of its recipe; leave it out",
    "run_dir": "the folder of a run is named by recipe, seed and fingerprint; leave it out",
    "rehearse": "a dry run has no result; write python -m lsgd.train recipe=NAME dry_run=true",
}
"""The keys that no override of planned runs may set, with the reason and the fix."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that a study or a search plans to train: one recipe with one seed."""

    recipe: Recipe
    overrides: list[str]
    """The overrides of the recipe, without `run_dir`."""
    recipe_file: str | None = None
    """The file of a user's own recipe."""

    @property
    def recipe_argument(self) -> str:
        """The name of the recipe or the path of its file, as a launcher takes it."""
        return self.recipe_file or self.recipe.name

    def __str__(self) -> str:
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def folder(self) -> Path:
        """The path of the run folder; all studies that contain the same run share it."""
        return planned_run_folder(self.recipe)

    @property
    def log_path(self) -> Path:
        """The path of the log with the output of all attempts, of launcher and processes."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def job_path(self) -> Path:
        """The path of the file with the launcher's output of the last submission to a queue."""
        return self.folder.with_name(f"{self.folder.name}.job")

    @property
    def saved_run(self) -> Run | None:
        """The run read from its run folder, or None if there is none of this fingerprint."""
        try:
            run = read_run(self.folder, train_rows=False)
        except NotARunError:
            return None
        return run if run.recipe.fingerprint == self.recipe.fingerprint else None

    @property
    def examples_left(self) -> int:
        """The number of examples still to train on, in the epochs that are not finished."""
        run = self.saved_run
        done = run.epoch if run else 0
        return (self.recipe.epochs - done) * self.recipe.data.train_examples

    @property
    def job_id(self) -> str | None:
        """The id of the Slurm job that was last submitted for this run, or None."""
        answer = self.job_path.read_text("utf-8", "replace") if self.job_path.exists() else ""
        submitted = re.search(r"Submitted batch job (\d+)", answer)
        return submitted[1] if submitted else None

    @property
    def active_job(self) -> str | None:
        """The Slurm job of this run, as `job ID`, if it is pending or running; else None.

        Raises UsageError if squeue cannot answer, since the run might then be trained twice.
        """
        job = self.job_id
        if job is None:
            return None
        question = ["squeue", "--noheader", "--format=%T", "--jobs", job]
        try:
            queue = subprocess.run(question, capture_output=True, text=True, errors="replace")
        except FileNotFoundError:
            problem = "squeue is not installed here"
        else:
            if queue.returncode == 0:
                return f"job {job}" if queue.stdout.strip() else None
            if "Invalid job id" in queue.stderr:
                return None
            problem = f"squeue fails: {queue.stderr.strip()}"
        raise UsageError(
            f"it is unknown whether job {job} still trains {self} ({problem}); check where "
            f"squeue works, or remove {self.job_path} if the job has ended"
        )


def has_ended(run: Run | None) -> bool:
    """Return whether a run has finished or diverged; a diverged run would diverge again."""
    return run is not None and (run.finished or run.diverged is not None)
