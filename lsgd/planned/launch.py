"""The launcher of planned runs, with its options adapted to each run."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lsgd.job.launcher import cores, detect_launch, omp_num_threads
from lsgd.launch.k8s import longest_name
from lsgd.launch.processes import count_processes, gpus_per_machine, python
from lsgd.override_syntax import format_override
from lsgd.planned.planned_run import PlannedRun


@dataclass(frozen=True)
class RunLauncher:
    """A launcher of planned runs, such as slurm or local, with its command-line options."""

    name: str
    """The name of a launcher of lsgd.launch, or `spark`, whose executors start each process."""
    options: dict[str, str]

    def command(self, trial: PlannedRun) -> list[str]:
        """Return the command that starts or resumes a planned run; on Spark, of each process."""
        folder, (_, options) = trial.folder, self.fit_processes(trial.recipe.most_processes)
        if self.name == "spark":
            recipe = format_override("+recipe", trial.recipe_argument)
            return [
                python(),
                "-m",
                "lsgd.train",
                recipe,
                *trial.overrides,
                format_override("run_dir", folder),
            ]
        if self.name == "k8s":
            # The volume claim is mounted at /lsgd. Kubernetes accepts each job name only once.
            folder = Path("/lsgd") / folder
            options = options | {"--name": _name_on_kubernetes(trial.folder.name, options)}
        return [
            *[
                sys.executable,
                "-m",
                "lsgd.launch",
                self.name,
                trial.recipe_argument,
                *trial.overrides,
            ],
            format_override("run_dir", folder),
            *(word for option in options.items() for word in option),
        ]

    def fit_processes(self, max_processes: int) -> tuple[int, dict[str, str]]:
        """Limit a launch to `max_processes` processes; return their number and launcher options.

        The number of processes does not change what the run computes.
        """
        processes = count_processes(self.name, self.options)
        if processes <= max_processes:
            return processes, self.options
        if gpus := gpus_per_machine(self.name, self.options):
            gpus = min(gpus, max_processes)
            nodes = max_processes // gpus
            return nodes * gpus, self.options | {"--nodes": str(nodes), "--gpus": str(gpus)}
        fewer = {"--np": str(max_processes)}
        if "--nodes" in self.options:
            fewer["--nodes"] = str(min(int(self.options["--nodes"]), max_processes))
        return max_processes, self.options | fewer


def _name_on_kubernetes(folder: str, options: Mapping[str, str]) -> str:
    """Return a valid Kubernetes job name made of the end of a run folder's name.

    The end holds the fingerprint, which is unique.
    """
    most = longest_name(int(options.get("--nodes", 1)))
    name = re.sub("[^a-z0-9]+", "-", folder.lower())
    begin = "" if name[-most:][0].isalpha() else "t"
    return f"{begin}{name[len(begin) - most :]}"


def limit_threads(launcher: RunLauncher, jobs: int) -> None:
    """Set OMP_NUM_THREADS so that `jobs` concurrent runs share the cores of this machine.

    Otherwise each run would use one thread per core. A value set by the caller stays. Spark sets
    the number of each task, and runs on other machines keep the default.
    """
    if omp_num_threads(os.environ) or launcher.name == "spark":
        return
    if not launcher.options.keys() & {"--hosts", "--nodes"}:
        processes = count_processes(launcher.name, launcher.options)
        threads = max(1, cores(detect_launch()) // (jobs * processes))
        os.environ["OMP_NUM_THREADS"] = str(threads)
