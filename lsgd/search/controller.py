"""The search at work: points are proposed, trained, watched, and given up or told."""

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING

from lsgd.errors import NotSaved, Preempted, Refused
from lsgd.recipe.search import Value
from lsgd.run.read import Run
from lsgd.run.remaining import duration
from lsgd.run.rows import number, read_rows
from lsgd.search.folder import lock, locked
from lsgd.search.places import Place
from lsgd.search.point import FAILED, FINISHED, PRUNED, RUNNING
from lsgd.search.space import Space, in_short
from lsgd.search.stop import Stop
from lsgd.supervise.logbook import Taken
from lsgd.trials.attempt import failure
from lsgd.trials.trial import Trial, ended

if TYPE_CHECKING:
    from lsgd.search.engine import Engine

POLL = 0.25
"""Seconds between looks at what the trials have written."""
OTHERS = 1.0
"""Seconds between looks at what other processes do for the same search."""
CRASHES = 2
"""After so many a trial has failed."""


@dataclass
class OpenPoint:
    """A point that is being trained by this process: one trial for each seed, one after another."""

    number: int
    values: dict[str, Value]
    trials: list[Trial]
    stop: Stop
    lock: IO[str]
    """It is held as long as this process has the point."""
    began: float = field(default_factory=time.monotonic)
    step: int = 0
    """The epochs that were reported, of all its trials together."""
    told: bool = False


class Controller:
    """What one process does for a search; others may do the same in the same folder."""

    def __init__(
        self, space: Space, engine: "Engine", place: Place, folder: Path, signals: list[int]
    ) -> None:
        self.space, self.engine, self.place = space, engine, place
        self.folder, self.signals = folder, signals
        self.budget = space.search.points
        self.active: dict[Future[str], OpenPoint] = {}
        self.refusal: Refused | None = None
        """What would befall every trial; the others are told to leave then."""

    def search(self, jobs: int) -> None:
        """Try points, so many at a time, until there are as many as were asked for.

        Returns early once a signal has come. Raises Refused for what would befall every trial.
        """
        with ThreadPoolExecutor(jobs) as pool:
            while True:
                while len(self.active) < jobs and (job := self._next()):
                    self.active[pool.submit(self._train, job)] = job
                if not self.active and (self.signals or not self._others_at_work()):
                    break
                done, _ = wait(self.active, timeout=POLL, return_when=FIRST_COMPLETED)
                for future, job in list(self.active.items()):
                    self._watch(job)
                    if future in done:
                        self._end(self.active.pop(future), future)
                if not self.active:
                    time.sleep(POLL)
        if self.refusal:
            raise self.refusal

    def compare(self, name: str, trials: Sequence[Trial], jobs: int) -> None:
        """Train what is left of these, so many at a time; says what has failed."""

        def finish(trial: Trial) -> None:
            who = f"{name}, seed {trial.recipe.seed}"
            why = self._finish(trial, Stop(self.signals), lambda what: say(f"{who}: {what}"))
            if why:
                say(f"{who}: {why}")
            elif (run := trial.run) and run.finished:
                say(f"{who}: {run.metric.named(run.number)}")

        with ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(finish, trial) for trial in trials]:
                future.result()

    def _next(self) -> OpenPoint | None:
        """A point that has nobody, or a new one; None if there is none, or this search ends."""
        if self.signals:
            return None
        # A point is nobody's between its number and its lock; and two must not both be the last.
        with locked(self.folder, "ask"):
            points = self.engine.points()
            mine = {job.number for job in self.active.values()}
            for point in points:
                left = point.state == RUNNING and point.number not in mine
                if left and (held := lock(self.folder, str(point.number), wait=False)):
                    return self._job(point.number, held, step=max(point.reported, default=0))
            if len(points) >= self.budget:
                return None
            number = self.engine.ask()
            held = lock(self.folder, str(number), wait=True)
            assert held
            return self._job(number, held, step=0)

    def _job(self, number: int, held: IO[str], step: int) -> OpenPoint | None:
        """The point, which is this process's from now on; None if the recipe refuses it."""
        values = self.engine.values(number)
        try:
            trials = self.space.trials(values, self.space.search.seeds)
        except Refused as error:
            self.engine.tell(number, FAILED, why=str(error))
            held.close()
            self._refuse(error)
            return None
        job = OpenPoint(number, values, trials, Stop(self.signals), held, step=step)
        if step:  # of a search that was killed, perhaps before it had asked
            self._give_up_if_due(job)
        return job

    def _refuse(self, error: Refused) -> None:
        self.refusal = self.refusal or error
        self.signals.append(signal.SIGTERM)

    def _others_at_work(self) -> bool:
        time.sleep(OTHERS)
        return any(point.state == RUNNING for point in self.engine.points())

    def _train(self, job: OpenPoint) -> str:
        """Train the point with one seed after the other; returns why it has failed, if it has.

        It runs in a thread, while the thread of the search watches the rows.
        """
        for trial in job.trials:
            if why := self._finish(trial, job.stop, lambda what: self._say(job, what)):
                return why
            if job.stop:
                break
        return ""

    def _finish(self, trial: Trial, stop: Stop, say: Callable[[str], None]) -> str:
        """Train what is left of the trial, until it is told to stop; why it has failed, if it has.

        A crash is no failure yet; raises Refused for what another trial would be told too.
        """
        crashes, announced, run = 0, False, trial.run
        while not stop and not ended(run):
            try:
                ending = self.place.train(trial, stop, say)
            except Taken:
                if not announced:
                    say("is being trained by another process")
                announced = True
                time.sleep(OTHERS)
                continue
            except OSError as error:
                raise Refused(f"{trial} cannot be started ({error}); mend that first") from None
            run = trial.run
            if ending is None or ending.code == Preempted.exit_code or ended(run):
                continue
            why = failure(trial, ending)
            if ending.code in (Refused.exit_code, NotSaved.exit_code):
                raise Refused(f"{trial}: {why}")
            crashes += 1
            if crashes == CRASHES:
                return why
            say(f"{why}; started once more")
        return run.state if run and run.diverged is not None else ""

    def _watch(self, job: OpenPoint) -> None:
        """Report what the runs of the point have written since, epoch by epoch.

        A point is given up by the first epoch at which it is due, even if a run has gone further.
        """
        for place, trial in enumerate(job.trials):
            for epoch, value in sorted(_epochs(trial).items()):
                step = place * trial.recipe.epochs + epoch
                if step > job.step and not job.told:
                    job.step = step
                    self.engine.report(job.number, step, value)
                    self._give_up_if_due(job)

    def _give_up_if_due(self, job: OpenPoint) -> None:
        last = len(job.trials) * job.trials[0].recipe.epochs
        if job.step < last and self.engine.gives_up(job.number):
            # Told before the run has left, so that nothing can come between the two.
            self._tell(job, PRUNED, f"given up after {job.step} of {last} epochs")
            job.stop.prune()

    def _end(self, job: OpenPoint, future: "Future[str]") -> None:
        """Tell what has become of a point whose trials have ended."""
        try:
            why = future.result()
        except Refused as error:
            self._refuse(error)
            job.lock.close()
            return
        runs = [run for trial in job.trials if (run := trial.run)]
        if why and not job.told:
            # Of one that diverged it is known how bad it is, as a report counts it too.
            diverged = next((run for run in runs if run.diverged is not None), None)
            guess = diverged.metric.guess(diverged.recipe.data.classes) if diverged else None
            self._tell(job, FAILED, f"failed: {why}", value=guess, why=why)
        elif not job.told and len(runs) == len(job.trials) and all(run.finished for run in runs):
            value = fmean(run.number for run in runs)
            took = duration(time.monotonic() - job.began)
            self._tell(job, FINISHED, f"{runs[0].metric.named(value)}, {took}", value=value)
        elif not job.told:
            self._say(job, "stopped; the same command goes on with it")
        job.lock.close()

    def _tell(
        self, job: OpenPoint, state: str, text: str, *, value: float | None = None, why: str = ""
    ) -> None:
        self.engine.tell(job.number, state, value=value, why=why)
        job.told = True
        self._say(job, text)

    def _say(self, job: OpenPoint, what: str) -> None:
        say(f"point {job.number + 1} of {self.budget} ({in_short(job.values)}): {what}")


def _epochs(trial: Trial) -> dict[int, float]:
    """What the run has said of its first evaluation set after each epoch so far."""
    try:
        run = Run(trial.folder, trial.recipe, read_rows(trial.folder / "metrics.jsonl"))
    except OSError:
        return {}
    values = {epoch: number(row, run.metric.key) for epoch, row in run.epochs.items()}
    return {epoch: value for epoch, value in values.items() if value is not None}


def say(text: str) -> None:
    """One line on the screen."""
    print(f"{datetime.now():%H:%M:%S}  {text}", flush=True)
