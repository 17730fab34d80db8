"""The launcher of the trials, with options that fit each of them."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from lsgd.job.launcher import cores, detect
from lsgd.launch.processes import count_processes, gpus_per_machine, python
from lsgd.trials.trial import Trial


@dataclass(frozen=True)
class TrialLauncher:
    """The launcher that starts the trials, and the options it is given."""

    name: str
    """That of a launcher of lsgd.launch, or spark, whose executors start each process."""
    options: dict[str, str]

    def command(self, trial: Trial) -> list[str]:
        """What starts the trial, or goes on with it; on Spark, what each of its processes runs."""
        folder, (_, options) = trial.folder, self.fitted(trial.recipe.most_processes)
        if self.name == "spark":
            recipe = f"+recipe={trial.recipe.name}"
            return [python(), "-m", "lsgd.train", recipe, *trial.words, f"run_dir={folder}"]
        if self.name == "k8s":
            # Where the claim is mounted; and a name for each, as Kubernetes takes one only once.
            folder = Path("/lsgd") / folder
            options = options | {"--name": re.sub("[^a-z0-9]+", "-", trial.folder.name.lower())}
        return [
            *[sys.executable, "-m", "lsgd.launch", self.name, trial.recipe.name, *trial.words],
            f"run_dir={folder}",
            *(word for option in options.items() for word in option),
        ]

    def fitted(self, most: int) -> tuple[int, dict[str, str]]:
        """The processes of a run that has work for at most so many, and the options that ask for
        these; fewer make the same run.
        """
        processes = count_processes(self.name, self.options)
        if processes <= most:
            return processes, self.options
        if gpus := gpus_per_machine(self.name, self.options):
            gpus = min(gpus, most)
            nodes = most // gpus
            return nodes * gpus, self.options | {"--nodes": str(nodes), "--gpus": str(gpus)}
        fewer = {"--np": str(most)}
        if "--nodes" in self.options:
            fewer["--nodes"] = str(min(int(self.options["--nodes"]), most))
        return most, self.options | fewer


def share_cores(launcher: TrialLauncher, jobs: int) -> None:
    """Give each of so many trials at a time its part of the threads.

    Each would take as many as this machine has cores otherwise; a task of Spark has its own number.
    What the caller has set stays.
    """
    if launcher.name != "spark" and not launcher.options.keys() & {"--hosts", "--nodes"}:
        processes = count_processes(launcher.name, launcher.options)
        threads = max(1, cores(detect()) // (jobs * processes))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
