"""The trials that are trained by this process: one after another, or several at a time."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from lsgd.errors import Refused
from lsgd.run.remaining import duration
from lsgd.supervise.logbook import Taken
from lsgd.trials.attempt import attempt, failure
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.trial import Trial


@dataclass
class Work:
    """The trials that are to be trained here, and what has become of them so far."""

    launcher: TrialLauncher
    todo: list[Trial]
    signals: Sequence[int]
    """Those that ask to stop, as they are received."""
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = deque(enumerate(self.todo, 1))
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.examples = sum(trial.examples_left for trial in self.todo)

    def train(self, jobs: int) -> dict[str, str]:
        """Train them, so many at a time, until all have ended or somebody asks to stop.

        Returns which have failed, and why.
        """
        with ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(self.take) for _ in range(jobs)]:
                future.result()
        return self.failed

    def take(self) -> None:
        """Train one after another, until none is left."""
        announced: set[int] = set()
        while not self.signals:
            try:
                number, trial = self.waiting.popleft()
            except IndexError:
                return
            try:
                self.attempt(number, trial)
            except Taken:
                if number not in announced:
                    announced.add(number)
                    self.say(number, trial, "is being trained by another process; comes later")
                self.waiting.append((number, trial))
                time.sleep(1)
            except (Refused, OSError) as error:
                self.failed[str(trial)] = str(error)
                self.say(number, trial, f"failed: {error}")

    def attempt(self, number: int, trial: Trial) -> None:
        """Train what is left of the trial; raises Taken, Refused and OSError."""
        began = time.monotonic()
        ending = attempt(
            self.launcher, trial, self.signals, lambda what: self.say(number, trial, what)
        )
        if ending is None:
            return
        run = trial.run
        if run and run.finished:
            outcome = run.metric.named(run.number)
            taken = duration(time.monotonic() - began)
            self.say(number, trial, f"{outcome}, {taken}{self.estimate()}")
        elif self.signals:
            self.say(number, trial, f"stopped, {run.state if run else 'before it was saved'}")
        else:
            raise Refused(failure(trial, ending))

    def say(self, number: int, trial: Trial, what: str) -> None:
        """One line on the screen."""
        with self.lock:
            now = datetime.now()
            print(f"{now:%H:%M:%S}  {number} of {len(self.todo)}  {trial}: {what}", flush=True)

    def estimate(self) -> str:
        """How long the rest will take if it goes on as fast as until now."""
        examples = {str(trial): trial.examples_left for trial in self.todo}
        seen = self.examples - sum(examples.values())
        left = sum(count for name, count in examples.items() if name not in self.failed)
        if left == 0 or seen <= 0:
            return ""
        return f"; about {duration((time.monotonic() - self.began) * left / seen)} left"
