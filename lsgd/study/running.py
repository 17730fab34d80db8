"""The trials that are trained by this process: one after another, or several at a time."""

import shlex
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from lsgd.errors import Refused
from lsgd.study.launch import TrialLauncher
from lsgd.study.trials import Trial, ended
from lsgd.supervise.logbook import Taken, open_logbook
from lsgd.supervise.start import run_job


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
        trial.log.parent.mkdir(parents=True, exist_ok=True)
        with (
            trial.log.open("a", encoding="utf-8") as output,
            open_logbook(trial.folder, screen=output, patience=0) as logbook,
        ):
            run = trial.run
            if run and ended(run):
                self.say(number, trial, f"another process has trained it: {run.state}")
                return
            if job := trial.queued:
                raise Refused(f"{job} is to train it; wait for that or cancel it")
            command = self.launcher.command(trial)
            begins = f"goes on after epoch {run.epoch}" if run and run.epoch else "starts"
            processes, _ = self.launcher.fitted(trial.recipe.most_processes)
            self.say(number, trial, f"{begins}, processes: {processes}")
            logbook.say("start", shlex.join(command), command=command)
            began = time.monotonic()
            ending = run_job(command, logbook, self.signals, output=output)
            logbook.say("end", ending.cause, code=ending.code)
        taken = duration(time.monotonic() - began)
        run = trial.run
        if run and run.finished:
            outcome = run.metric.named(run.number)
            self.say(number, trial, f"{outcome}, {taken}{self.estimate()}")
        elif self.signals:
            self.say(number, trial, f"stopped, {run.state if run else 'before it was saved'}")
        else:
            ends = last_line(trial.log)
            raise Refused(f"exit code {ending.code}, {ending.cause}; {ends}")

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


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(42.4), duration(200), duration(10_000)
    ('42 s', '3 min', '2 h 47 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def last_line(log: Path) -> str:
    """The last thing that was said, and where."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The supervisor's own line says what is known already.
    lines = [line for line in lines if line.strip() and " supervise: " not in line]
    return f"{log} ends: {lines[-1].strip()}" if lines else f"nothing is in {log}"
