"""A started job of real processes that tests observe and kill."""

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from helpers.launching import FOR_JOBS, WITHOUT_COMPILER
from helpers.victims import ranks
from helpers.waiting import polls
from lsgd.job.ending import end_tagged
from lsgd.job.system import tagged_pids
from lsgd.run.rows import read_rows

HANG_TIMEOUT = 600.0
"""The time without new output or rows after which a job counts as hanging, in seconds.

It is far more than any step takes on a busy machine, and less than the hour that some processes
would wait for others.
"""


class Job:
    """A started job, with its run folder and the file of its output."""

    def __init__(
        self, start: list[str], folder: Path, output: Path | None, environment: dict[str, str]
    ) -> None:
        self.folder, self.output = folder, output or folder.with_suffix(".txt")
        self.tag = ("LSGD_TEST_TAG", uuid.uuid4().hex)
        path = filter(None, (WITHOUT_COMPILER, os.environ.get("PYTHONPATH")))
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
        self.environment = own | FOR_JOBS | environment | dict([self.tag])
        self.start(start)

    def start(self, start: list[str]) -> None:
        """Start or restart the job with this command line."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                start, env=os.environ | self.environment, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    @property
    def output_text(self) -> str:
        """The output of the job so far."""
        return self.output.read_text(errors="replace")

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of this kind in the run's metrics.jsonl."""
        return [row for row in read_rows(self.folder / "metrics.jsonl") if row["kind"] == kind]

    @property
    def step(self) -> int:
        """The last training step that has a row, or 0."""
        return max((row["step"] for row in self.rows("train")), default=0)

    @property
    def alive(self) -> set[int]:
        """The ids of all processes of the job that are alive."""
        self.process.poll()  # reaps the process, which would else stay as a zombie
        return tagged_pids(self.tag)

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the training processes of the job by rank."""
        return ranks(psutil.Process(pid) for pid in self.alive if psutil.pid_exists(pid))

    def until(self, condition: Callable[[], object], *, ended: bool = False) -> None:
        """Wait until a condition is true; fail if the job hangs, or has ended unless `ended`."""
        news, since = -1, time.monotonic()
        for is_met in polls(condition, 0.05):
            if is_met:
                return
            over = self.process.poll() is not None and not ended
            assert not over or condition(), f"it has ended: {self.output_text[-5000:]}"
            metrics = self.folder / "metrics.jsonl"
            now = self.output.stat().st_size + (metrics.stat().st_size if metrics.exists() else 0)
            if now != news:
                news, since = now, time.monotonic()
            assert time.monotonic() - since < HANG_TIMEOUT, (
                f"{self.alive} hang: {self.output_text[-5000:]}"
            )

    def wait(self) -> int:
        """Wait for the end of the job and return its exit code."""
        self.until(lambda: self.process.poll() is not None, ended=True)
        return self.process.returncode

    def wait_until_no_processes(self) -> None:
        """Wait until all processes of the job have exited."""
        self.until(lambda: not self.alive, ended=True)
        self.process.wait(timeout=HANG_TIMEOUT)

    @contextmanager
    def stopped(self, process: psutil.Process, step: int) -> Iterator[None]:
        """Wait until a process has stopped itself after a step; resume it after this context.

        Within it the process may be killed.
        """
        # First the output: after SIGCONT for an earlier stop the status stays `stopped` a moment.
        self.until(lambda: f"step {step}/" in self.output_text)
        self.until(lambda: process.status() == psutil.STATUS_STOPPED)
        yield
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def start_job(
    start: list[str], folder: Path, *, output: Path | None = None, **environment: str
) -> Iterator[Job]:
    """Start a job with this command line for this context, and kill all its processes after it."""
    job = Job(start, folder, output, environment)
    try:
        yield job
    finally:
        end_tagged(job.tag, 0)
        job.process.wait(timeout=HANG_TIMEOUT)
