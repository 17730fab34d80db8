"""Studies that tests run as a user does, each in its own folder."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from helpers.launching import SERVERS, TRAINING, fork_server
from helpers.waiting import wait_until as wait_until
from lsgd.job import members
from lsgd.run.rows import read_rows

TRIALS = Path("runs/trials")
QUICK = ("+study=small", "--launch", "mpirun", "--np", "2")
"""The arguments of a study with four fake runs, launched by the installation's mpirun."""
COMMANDS = ("lsgd.config", "lsgd.planned", "lsgd.study.planned_runs", "lsgd.report.findings")
"""The modules of lsgd that commands of studies and searches import, in a third of a second."""
ALL = {"digits-seed0": 1, "digits-seed1": 1, "digits_unscaled-seed0": 1, "digits_unscaled-seed1": 1}


@cache
def study_server() -> list[str]:
    """Return the command prefix of a fork server that has imported libraries, but not lsgd."""
    return SERVERS.enter_context(fork_server("matplotlib.figure", "optuna", "scipy.stats"))


@cache
def installed_server(installation: Path) -> list[str]:
    """Return the command prefix of a fork of that server that has imported a copy of lsgd too."""
    return SERVERS.enter_context(
        fork_server(
            *COMMANDS,
            *TRAINING,
            environment=os.environ | {"PYTHONPATH": str(installation)},
            python=study_server(),
            folder=installation,
        )
    )


class StudyFolder:
    """A folder in which tests run studies with fake runs."""

    def __init__(self, folder: Path, installation: Path) -> None:
        self.folder, self.installation = folder, installation
        self.path = f"{installation}/bin:{os.environ['PATH']}"
        self.python = sys.executable
        """The Python that the launchers of runs start."""
        self.begun: list[subprocess.Popen[str]] = []

    def environment(self, **plan: str) -> dict[str, str]:
        """Return environment variables that import this installation and set the plan of runs."""
        return os.environ | {
            "PYTHON": self.python, "PYTHONPATH": str(self.installation),
            "SMALL_TRIALS": json.dumps(plan), "OMP_NUM_THREADS": "1", "PATH": self.path,
            "SMALL_COMPOSED": str(self.installation / "composed"),
            "SMALL_COMPOSER": json.dumps(installed_server(self.installation)),
        }  # fmt: skip

    def start(
        self,
        *words: str,
        command: str = "study",
        python: Sequence[str] = (sys.executable,),
        **plan: str,
    ) -> "subprocess.Popen[str]":
        """Start a study, or another command of lsgd, with this plan for its fake runs."""
        self.begun.append(
            subprocess.Popen(
                [*python, "-m", f"lsgd.{command}", *words],
                cwd=self.folder,
                env=self.environment(**plan),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.begun[-1]

    def run(self, *words: str, command: str = "study", **plan: str) -> tuple[int, str]:
        """Run a study or another command to its end; return its exit code and output."""
        job = self.start_fork(*words, command=command, **plan)
        said, _ = job.communicate(timeout=600)
        return job.returncode, said

    def start_fork(
        self, *words: str, command: str = "study", **plan: str
    ) -> "subprocess.Popen[str]":
        """Start a command as a fork, which signals do not reach, in a third of the CPU time."""
        python = installed_server(self.installation)
        return self.start(*words, command=command, python=python, **plan)

    def run_folder(self, name: str, seed: int = 0) -> Path:
        """Return the run folder of this recipe and seed."""
        [folder] = [
            path
            for path in (self.folder / TRIALS).glob(f"{name}-seed{seed}-*")
            if re.fullmatch(r".*-[0-9a-f]{8}", path.name)
        ]
        return folder

    def starts(self) -> dict[str, int]:
        """Return the number of starts by run, NAME-seedS."""
        folders = [path for path in (self.folder / TRIALS).iterdir() if path.is_dir()]
        rows = {path.name: read_rows(path / "metrics.jsonl") for path in folders}
        return {
            name.rpartition("-")[0]: sum(row["kind"] == "start" for row in of_trial)
            for name, of_trial in rows.items()
        }

    def epochs(self, folder: Path) -> list[int]:
        """Return the finished epochs in a run folder, in order."""
        return [r["epoch"] for r in read_rows(folder / "metrics.jsonl") if r["kind"] == "epoch"]

    def epochs_of_all(self) -> list[list[int]]:
        """Return the finished epochs of each run that has a folder."""
        return [self.epochs(folder) for folder in (self.folder / TRIALS).glob("*[0-9a-f]/")]


@contextmanager
def study_folder(folder: Path, installation: Path) -> Iterator[StudyFolder]:
    """Yield a folder for studies, and kill all commands and runs started there at the end."""
    place = StudyFolder(folder, installation)
    yield place
    for job in place.begun:
        job.kill()
        job.communicate(timeout=600)
    for trial in (folder / TRIALS).glob("*"):
        members.stop_job(trial)
