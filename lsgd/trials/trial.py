"""One recipe and seed: what it trains, where it lies, and what has become of it."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.run.read import NotARun, Run, read_run, trial_folder

FIXED_OF_TRIALS = {
    "name": "a trial has the name of its recipe; leave it out",
    "run_dir": "the folder of a trial is named by recipe, seed and fingerprint; leave it out",
    "rehearse": "a rehearsal has no result; write python -m lsgd.train +recipe=NAME rehearse=true",
}
"""What no word for trials may say, and why."""


@dataclass(frozen=True)
class Trial:
    """One recipe and seed of a study or a search."""

    recipe: Recipe
    words: list[str]
    """What a launcher is given after the recipe, but for the run folder."""

    def __str__(self) -> str:
        return f"{self.recipe.name}, seed {self.recipe.seed}"

    @property
    def folder(self) -> Path:
        """The run folder, which other studies share that have the same run in common."""
        return trial_folder(self.recipe)

    @property
    def log(self) -> Path:
        """What the launcher and the processes print, start after start."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def job(self) -> Path:
        """What the launcher said when it last put the trial into a queue."""
        return self.folder.with_name(f"{self.folder.name}.job")

    @property
    def run(self) -> Run | None:
        """What there is in the folder, if it is this run."""
        try:
            run = read_run(self.folder)
        except NotARun:
            return None
        return run if run.recipe.fingerprint == self.recipe.fingerprint else None

    @property
    def examples_left(self) -> int:
        """Training examples that the run still has to see."""
        run = self.run
        done = run.epoch if run else 0
        return (self.recipe.epochs - done) * self.recipe.data.train_examples

    @property
    def submitted(self) -> str | None:
        """The number of the job that was last submitted for the trial."""
        answer = self.job.read_text(encoding="utf-8") if self.job.exists() else ""
        submitted = re.search(r"Submitted batch job (\d+)", answer)
        return submitted[1] if submitted else None

    @property
    def queued(self) -> str | None:
        """The job that was submitted for the trial, if it is waiting or running.

        Raises Refused if that cannot be found out, since the trial might be trained twice.
        """
        job = self.submitted
        if job is None:
            return None
        question = ["squeue", "--noheader", "--format=%T", "--jobs", job]
        try:
            queue = subprocess.run(question, capture_output=True, text=True)
        except FileNotFoundError:
            problem = "squeue is not installed here"
        else:
            if queue.returncode == 0:
                return f"job {job}" if queue.stdout.strip() else None
            if "Invalid job id" in queue.stderr:
                return None
            problem = f"squeue says: {queue.stderr.strip()}"
        raise Refused(
            f"whether job {job} still trains {self} is not known ({problem}); ask where that "
            f"works, or remove {self.job} if the job has gone"
        )


def ended(run: Run | None) -> bool:
    """Whether nothing is left to train: the same words would make it diverge again."""
    return run is not None and (run.finished or run.diverged is not None)
