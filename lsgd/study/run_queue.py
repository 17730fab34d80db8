"""The queue of runs that this process trains, one after another or several at a time."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from lsgd.errors import NotSavedError, UsageError
from lsgd.planned import PlannedRun, RunLauncher, attempt_run, failure_reason, has_ended
from lsgd.run.remaining import duration
from lsgd.supervise.logbook import SupervisorLockedError

MAX_FAILED_STARTS = 3
"""The number of runs that may fail before any run has made a step; then the queue is dropped."""


@dataclass
class RunQueue:
    """A queue of planned runs that this process trains, with the reasons why runs have failed."""

    launcher: RunLauncher
    runs: list[PlannedRun]
    signals: Sequence[int]
    """The stop signals received so far; a signal handler appends to it."""
    failed: dict[str, str] = field(default_factory=dict)
    failed_starts: int = 0
    """The number of runs that failed while no run had made a step."""

    def __post_init__(self) -> None:
        self.waiting = deque(enumerate(self.runs, 1))
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.examples = sum(trial.examples_left for trial in self.runs)

    def train(self, jobs: int) -> dict[str, str]:
        """Train all queued runs, `jobs` at a time, until they end or a stop signal arrives.

        Returns the reasons of failed runs by run. Raises NotSavedError if a disk is full, which
        would fail the other runs too, once the runs in progress have ended.
        """
        with ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(self.run_worker) for _ in range(jobs)]:
                future.result()
        return self.failed

    def run_worker(self) -> None:
        """Train queued runs, one after another, until none is left or a stop signal arrives."""
        announced: set[int] = set()
        while not self.signals:
            try:
                number, trial = self.waiting.popleft()
            except IndexError:
                return
            try:
                self.train_run(number, trial)
            except SupervisorLockedError:
                if number not in announced:
                    announced.add(number)
                    self.print_progress(
                        number, trial, "is being trained by another process; retried later"
                    )
                self.waiting.append((number, trial))
                time.sleep(1)
            except NotSavedError:
                self.waiting.clear()
                raise
            except (UsageError, OSError) as error:
                self.failed[str(trial)] = str(error)
                self.print_progress(number, trial, f"failed: {error}")
                self.stop_after_failed_starts()

    def stop_after_failed_starts(self) -> None:
        """Count a failed run, and empty the queue if several failed and none has made a step.

        After MAX_FAILED_STARTS such failures all other runs would fail too.
        """
        with self.lock:
            if any(run.begun for each in self.runs if (run := each.saved_run)):
                return
            self.failed_starts += 1
            if self.failed_starts == MAX_FAILED_STARTS:
                for _, other in self.waiting:
                    self.failed[str(other)] = (
                        f"not started, as the first {MAX_FAILED_STARTS} runs ended before their "
                        "first step"
                    )
                self.waiting.clear()

    def train_run(self, number: int, trial: PlannedRun) -> None:
        """Start or resume a planned run, wait until it ends, and print its outcome.

        Raises SupervisorLockedError, UsageError, NotSavedError and OSError.
        """
        began = time.monotonic()
        ending = attempt_run(
            self.launcher,
            trial,
            self.signals,
            lambda what: self.print_progress(number, trial, what),
        )
        run = trial.saved_run
        if ending is None:
            # Another process has trained it; a run that diverged there has failed here too.
            if run and not run.finished:
                self.failed[str(trial)] = run.state
            return
        if run and run.finished and has_ended(run):
            outcome = run.metric.format_labelled(run.final_metric)
            taken = duration(time.monotonic() - began)
            self.print_progress(number, trial, f"{outcome}, {taken}{self.remaining_time()}")
        elif self.signals:
            self.print_progress(
                number, trial, f"stopped, {run.state if run else 'before it was saved'}"
            )
        else:
            raise UsageError(failure_reason(trial, ending))

    def print_progress(self, number: int, trial: PlannedRun, what: str) -> None:
        """Print a progress line about a run, with the time and its number in the queue."""
        with self.lock:
            now = datetime.now()
            print(f"{now:%H:%M:%S}  {number} of {len(self.runs)}  {trial}: {what}", flush=True)

    def remaining_time(self) -> str:
        """Return the estimated time to train the rest of the queue as text, or '' if unknown."""
        examples = {str(trial): trial.examples_left for trial in self.runs}
        seen = self.examples - sum(examples.values())
        left = sum(count for name, count in examples.items() if name not in self.failed)
        if left == 0 or seen <= 0:
            return ""
        return f"; about {duration((time.monotonic() - self.began) * left / seen)} left"
