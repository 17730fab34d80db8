"""The trials of a study: what each one trains, where it lies, and what has become of it."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lsgd import config
from lsgd.errors import Refused
from lsgd.recipe import Recipe
from lsgd.recipe.study import Study
from lsgd.run.read import NotARun, Run, read_run, trial_folder

FIXED = {
    "recipe": "a study has its recipes; write +study=NAME and words that hold for all of them",
    "name": "a trial has the name of its recipe; leave it out",
    "seed": "a study has its seeds; write seeds=[0,1] for some of them",
    "run_dir": "the folder of a trial is named by recipe, seed and fingerprint; leave it out",
    "rehearse": "a rehearsal has no result; write python -m lsgd.train +recipe=NAME rehearse=true",
}
"""What a word must not say, and why."""


@dataclass(frozen=True)
class Trial:
    """One recipe and seed of a study."""

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
    def queued(self) -> str | None:
        """The job that was submitted for the trial, if it is waiting or running.

        Raises Refused if that cannot be found out, since the trial might be trained twice.
        """
        answer = self.job.read_text(encoding="utf-8") if self.job.exists() else ""
        submitted = re.search(r"Submitted batch job (\d+)", answer)
        if not submitted:
            return None
        job = submitted[1]
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


def trials(study: Study, words: Sequence[str]) -> list[Trial]:
    """All of them, entry by entry; raises Refused if the words do not suit one of the recipes."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if key in FIXED:
            raise Refused(f"'{word}' cannot be said to a study: {FIXED[key]}")
    recipes = [config.load_recipe([f"+recipe={entry.recipe}", *words]) for entry in study.entries]
    same: dict[str, str] = {}
    for recipe in recipes:
        other = same.setdefault(recipe.fingerprint, recipe.name)
        if other != recipe.name:
            raise Refused(
                f"{' '.join(words) or f'+study={study.name}'} makes {other} and {recipe.name} the "
                "same run; leave out the word that does, or train that run alone with lsgd.train"
            )
    return [
        Trial(replace(recipe, seed=seed), [f"seed={seed}", *words])
        for recipe in recipes
        for seed in study.seeds
    ]
