"""Studies, as a user starts them in a folder of its own."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lsgd.job import members
from lsgd.run.rows import read_rows

TRIALS = Path("runs/trials")
QUICK = ("+study=small", "--launch", "mpirun", "--np", "2")
"""A study of four trials that train nothing, by the mpirun of the installation."""
ALL = {"digits-seed0": 1, "digits-seed1": 1, "digits_unscaled-seed0": 1, "digits_unscaled-seed1": 1}


class Place:
    """A folder to run studies in."""

    def __init__(self, folder: Path, installation: Path) -> None:
        self.folder, self.installation = folder, installation
        self.path = f"{installation}/bin:{os.environ['PATH']}"
        self.begun: list[subprocess.Popen[str]] = []

    def environment(self, **plan: str) -> dict[str, str]:
        """In which this installation is imported, and its trials go as planned."""
        return os.environ | {
            "PYTHON": sys.executable, "PYTHONPATH": str(self.installation),
            "SMALL_TRIALS": json.dumps(plan), "OMP_NUM_THREADS": "1", "PATH": self.path,
        }  # fmt: skip

    def start(self, *words: str, command: str = "study", **plan: str) -> "subprocess.Popen[str]":
        """Start a study, or another command of lsgd; the plan says what happens to trials."""
        self.begun.append(
            subprocess.Popen(
                [sys.executable, "-m", f"lsgd.{command}", *words],
                cwd=self.folder,
                env=self.environment(**plan),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return self.begun[-1]

    def run(self, *words: str, command: str = "study", **plan: str) -> tuple[int, str]:
        """A study run to its end, or another command: its exit code and what it said."""
        job = self.start(*words, command=command, **plan)
        said, _ = job.communicate(timeout=200)
        return job.returncode, said

    def trial(self, name: str, seed: int = 0) -> Path:
        """The folder of the trial."""
        [folder] = [
            path
            for path in (self.folder / TRIALS).glob(f"{name}-seed{seed}-*")
            if re.fullmatch(r".*-[0-9a-f]{8}", path.name)
        ]
        return folder

    def starts(self) -> dict[str, int]:
        """How often each trial was started."""
        folders = [path for path in (self.folder / TRIALS).iterdir() if path.is_dir()]
        rows = {path.name: read_rows(path / "metrics.jsonl") for path in folders}
        return {
            name.rpartition("-")[0]: sum(row["kind"] == "start" for row in of_trial)
            for name, of_trial in rows.items()
        }

    def epochs(self, folder: Path) -> list[int]:
        """The epochs that have ended, in their order."""
        return [r["epoch"] for r in read_rows(folder / "metrics.jsonl") if r["kind"] == "epoch"]

    def epochs_of_all(self) -> list[list[int]]:
        """The same of every trial that has a folder."""
        return [self.epochs(folder) for folder in (self.folder / TRIALS).glob("*[0-9a-f]/")]


@contextmanager
def opened(folder: Path, installation: Path) -> Iterator[Place]:
    """The place, which leaves nothing running."""
    place = Place(folder, installation)
    yield place
    for job in place.begun:
        job.kill()
        job.communicate()
    for trial in (folder / TRIALS).glob("*"):
        members.stop(trial)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for it; fail if it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
