"""The controller of a search: it asks Optuna for trials, trains them, prunes and records them."""

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import IO, TYPE_CHECKING

from lsgd.errors import ExitError, NotSavedError, PreemptedError, UsageError
from lsgd.planned import PlannedRun, failure_reason, has_ended
from lsgd.recipe.search import Value
from lsgd.run.read import Run
from lsgd.run.remaining import duration
from lsgd.run.rows import finite_number, is_row, read_rows
from lsgd.search.backends import TrialBackend
from lsgd.search.folder import acquire_lock, hold_lock
from lsgd.search.space import SearchSpace, crashed_trials, format_values
from lsgd.search.trial import (
    FAILED,
    FINISHED,
    PRUNED,
    RUNNING,
    StopRequest,
    Trial,
    best_trial,
    has_number,
)
from lsgd.supervise.logbook import SupervisorLockedError

if TYPE_CHECKING:
    from lsgd.search.optuna_study import OptunaStudy

POLL = 0.25
"""Seconds between two readings of the rows of the running trials."""
OTHERS = 1.0
"""Seconds between two checks for trials that other processes run for the same search."""
CRASHES = 2
"""The number of crashes of a run after which its trial has failed."""
ENDINGS: dict[int, type[ExitError]] = {each.exit_code: each for each in (UsageError, NotSavedError)}
"""The errors that would meet every other run too, by exit code."""
UNSTARTED = 2
"""The number of trials that may end before their first step while no run has made one.

Any further trial would then end for the same reason, which is not in its values.
"""


@dataclass
class RunningTrial:
    """A trial of a search that this process is training: one run for each seed, in turn."""

    number: int
    values: dict[str, Value]
    runs: list[PlannedRun]
    stop: StopRequest
    lock: IO[str]
    """The lock on the trial, held for as long as this process trains it."""
    began: float = field(default_factory=time.monotonic)
    reported_step: int = 0
    """The step of the last epoch reported to Optuna; `most_epochs` lie between two seeds."""
    is_recorded: bool = False


class Controller:
    """The controller of a search's trials in one process: it trains, prunes and records them."""

    def __init__(
        self,
        space: SearchSpace,
        engine: "OptunaStudy",
        place: TrialBackend,
        folder: Path,
        signals: list[int],
        *,
        most_trials: int | None = None,
    ) -> None:
        """Prepare to train the trials of a search, or only `most_trials` of them if that is given.

        Other processes train the rest then, and are not waited for.
        """
        self.space, self.engine, self.place = space, engine, place
        self.folder, self.signals = folder, signals
        self.budget, self.most_trials = space.search.trial_count, most_trials
        self.claimed: list[int] = []
        """The numbers of the trials that this process has begun or resumed to train."""
        self.active: dict[Future[str], RunningTrial] = {}
        self.refusal: ExitError | None = None
        """The error that would meet every run; the running ones are then stopped."""
        self.to_repeat: list[Trial] = []
        """Failed trials that are to be repeated."""
        self.any_run_stepped = self.found_step()
        """Whether any run of this search is known to have made a step."""
        self.ended_before_first_step: dict[int, tuple[RunningTrial, str]] = {}
        """Trials that ended before their first step, and why, while no run has made a step.

        They are not recorded as failed: if the machine is at fault, rerunning the command retries
        them.
        """

    def retry_failed(self) -> None:
        """Queue those of a search's failed trials to be repeated that may not fail again."""
        self.to_repeat += crashed_trials(self.space, self.engine.all_trials())

    def search(self, jobs: int) -> None:
        """Train trials, up to `jobs` at a time, until the search has as many as its settings say.

        Returns early once a signal has arrived. Stops the running trials, then raises UsageError
        for an error that would meet every run, the error of a full disk, or PreemptedError if the
        storage or the cluster cannot be reached.
        """
        with ThreadPoolExecutor(jobs) as pool:
            try:
                self._search(pool, jobs)
            except BaseException:
                self._stop_trials()
                raise
            finally:
                for job, _ in self.ended_before_first_step.values():
                    job.lock.close()
        if self.refusal:
            raise self.refusal

    def fail_unstarted(self) -> None:
        """Record those trials as failed that ended before their first step, if another made one.

        Their own processes may have ended before that step. Those that are trained again are left
        out.
        """
        if not self.found_step():
            return
        with hold_lock(self.folder, "ask"):
            for number in self.engine.unstarted_trials():
                if held := acquire_lock(self.folder, str(number), wait=False):
                    with held:
                        # Its process may have recorded it before it freed the lock.
                        if why := self.engine.unstarted_trials().get(number):
                            self.engine.tell(number, FAILED, why=why)
                            print_line(f"trial {number + 1} failed: {why}")

    def _search(self, pool: ThreadPoolExecutor, jobs: int) -> None:
        """Start, watch and record trials until no process of this search has any left to train."""
        while True:
            while len(self.active) < jobs and (job := self._next()):
                self.active[pool.submit(self._train_trial, job)] = job
            is_one_of_many = self.most_trials is not None
            if not self.active and (self.signals or is_one_of_many or not self._others_at_work()):
                break
            done, _ = wait(self.active, timeout=POLL, return_when=FIRST_COMPLETED)
            for future, job in list(self.active.items()):
                self._report_epochs(job)
                if future in done:
                    self._end(self.active.pop(future), future)
            if not self.active:
                time.sleep(POLL)

    def compare(self, name: str, trials: Sequence[PlannedRun], jobs: int) -> None:
        """Train a compared recipe's runs, up to `jobs` at a time; print failures and metrics."""

        def finish(trial: PlannedRun) -> None:
            who = f"{name}, seed {trial.recipe.seed}"
            why = self._train_run(
                trial, StopRequest(self.signals), lambda what: print_line(f"{who}: {what}")
            )
            if why:
                print_line(f"{who}: {why}")
            elif (run := trial.saved_run) and run.finished:
                print_line(f"{who}: {run.metric.format_labelled(run.final_metric)}")

        with ThreadPoolExecutor(jobs) as pool:
            for future in [pool.submit(finish, trial) for trial in trials]:
                future.result()

    def _next(self) -> RunningTrial | None:
        """Claim and return an abandoned or new trial; None if none is left or the search stops."""
        trained = len(self.claimed) - len(self.ended_before_first_step)
        if self.signals or trained == self.most_trials:
            return None
        # A new trial has no owner until its lock is taken, and two processes must not both start
        # the last one.
        with hold_lock(self.folder, "ask"):
            points = self.engine.all_trials()
            free = self.engine.trial_numbers_here() - self.ended_before_first_step.keys()
            free -= {job.number for job in self.active.values()}
            for point in points:
                left = point.state == RUNNING and point.number in free
                if (
                    left
                    and (held := acquire_lock(self.folder, str(point.number), wait=False))
                    and (job := self._claim(point.number, held, max(point.reported, default=0)))
                ):
                    return job
            while not self.signals and (
                self.to_repeat or len(self.engine.all_trials()) < self.budget
            ):
                number = self.engine.ask(self.to_repeat.pop(0) if self.to_repeat else None)
                held = acquire_lock(self.folder, str(number), wait=True)
                assert held
                if job := self._claim(number, held, step=0):
                    return job
        return None

    def _claim(self, number: int, held: IO[str], step: int) -> RunningTrial | None:
        """Return a locked trial with its runs; record it as failed and return None if invalid.

        A search checks some corners of its space before it begins; points between may be invalid.
        """
        values = self.engine.values(number)
        try:
            trials = self.space.planned_runs(values, self.space.search.seeds)
        except UsageError as error:
            why = str(error)
            try:
                self.space.recipe({})
            except UsageError as of_all:  # such as files that are gone meanwhile
                held.close()
                self._refuse(of_all)
                return None
            # Samplers would choose the point again and again if it had no value.
            known = [each.value or 0.0 for each in self.engine.all_trials() if has_number(each)]
            worst = max(known) if known else None
            job = RunningTrial(number, values, [], StopRequest(self.signals), held)
            self._record_state(job, FAILED, f"failed: {why}", value=worst, why=why)
            held.close()
            return None
        job = RunningTrial(
            number, values, trials, StopRequest(self.signals), held, reported_step=step
        )
        if number in self.engine.unstarted_trials():
            self.engine.note_unstarted(number, "")  # it may end in another way now
        if step:  # of a search that was killed, perhaps before its pruning decision
            self._prune_if_due(job)
        if not job.is_recorded:
            self.claimed.append(number)
        return job

    def _refuse(self, error: ExitError) -> None:
        """Store the first error that would meet every run, and stop the search's running trials."""
        self.refusal = self.refusal or error
        self._stop_trials()

    def _stop_trials(self) -> None:
        """Let the running trials save and end, unless they are ending already."""
        # A second entry would kill them while they save.
        if not self.signals:
            self.signals.append(signal.SIGTERM)

    def _others_at_work(self) -> bool:
        """Wait shortly, then return whether another process still trains a trial of this folder."""
        time.sleep(OTHERS)
        there = self.engine.trial_numbers_here() - self.ended_before_first_step.keys()
        return any(p.state == RUNNING and p.number in there for p in self.engine.all_trials())

    def _train_trial(self, job: RunningTrial) -> str:
        """Train a trial's runs, seed after seed; return why one of them failed, or an empty string.

        It runs in a worker thread, while the search's own thread watches the rows.
        """
        for trial in job.runs:
            if why := self._train_run(trial, job.stop, lambda what: self._say(job, what)):
                return why
            if job.stop:
                break
        return ""

    def _train_run(self, trial: PlannedRun, stop: StopRequest, say: Callable[[str], None]) -> str:
        """Train a run until it ends or is stopped; return why it failed, or an empty string.

        A run that crashes is restarted once. Raises UsageError, or the error of a full disk, for
        what would meet every other run too.
        """
        crashes, announced, run = 0, False, trial.saved_run
        while not stop and not has_ended(run):
            try:
                ending = self.place.train(trial, stop, say)
            except SupervisorLockedError:
                if not announced:
                    say("is being trained by another process")
                announced = True
                time.sleep(OTHERS)
                continue
            except OSError as error:
                raise UsageError(f"{trial} cannot be started ({error}); fix that first") from None
            run = trial.saved_run
            if ending is None or ending.code == PreemptedError.exit_code or has_ended(run):
                continue
            why = failure_reason(trial, ending)
            if ending.code in ENDINGS:
                raise ENDINGS[ending.code](f"{trial}: {why}")
            if stop:  # by which a process dies that has no handlers yet
                continue
            crashes += 1
            if crashes == CRASHES:
                return why
            say(f"{why}; restarted once")
        return run.state if run and run.diverged is not None else ""

    def _report_epochs(self, job: RunningTrial) -> None:
        """Report the new epochs of a trial's runs to Optuna, in order, and prune the trial if due.

        A trial is pruned by the first epoch at which that is due, even if a run has gone further.
        """
        for place, trial in enumerate(job.runs):
            for epoch, value in sorted(_epochs(trial).items()):
                step = place * self.space.most_epochs + epoch
                if step > job.reported_step and not job.is_recorded:
                    self._note_first_step()
                    job.reported_step = step
                    self.engine.report(job.number, step, value)
                    self._prune_if_due(job)

    def _prune_if_due(self, job: RunningTrial) -> None:
        """Prune a trial if Optuna's pruner asks for it and the trial has epochs left to train."""
        epochs, run = job.runs[-1].recipe.epochs, job.runs[-1].saved_run
        # The last run may have stopped early.
        last_epoch = run.epoch if run and run.finished else epochs
        last_step = (len(job.runs) - 1) * self.space.most_epochs + last_epoch
        if job.reported_step < last_step and self.engine.should_prune(job.number):
            trained = self.space.epochs_until(job.reported_step, epochs)
            # Recorded before the run exits, so that a kill between the two loses nothing.
            self._record_state(
                job, PRUNED, f"pruned after {trained} of {len(job.runs) * epochs} epochs"
            )
            job.stop.prune()

    def _end(self, job: RunningTrial, future: "Future[str]") -> None:
        """Record the final state of a trial whose runs have ended, unless they were interrupted."""
        try:
            why = future.result()
        except ExitError as error:
            self._refuse(error)
            job.lock.close()
            return
        runs = [run for trial in job.runs if (run := trial.saved_run)]
        # Of this trial, or of one that another process trains.
        if any(run.begun for run in runs) or (why and self.found_step()):
            self._note_first_step()
        if why and not job.is_recorded and not self.any_run_stepped:
            self._say(job, f"ended before its first step: {why}")
            self.ended_before_first_step[job.number] = job, why
            self.engine.note_unstarted(job.number, why)
            if len(self.ended_before_first_step) >= UNSTARTED:
                self._stop_trials()
            return
        if why and not job.is_recorded:
            # A diverged run has a value, the chance level, as it has in a report.
            diverged = next((run for run in runs if run.diverged is not None), None)
            guess = diverged.metric.chance_level(diverged.recipe.data.classes) if diverged else None
            self._record_state(job, FAILED, f"failed: {why}", value=guess, why=why)
        elif (
            not job.is_recorded and len(runs) == len(job.runs) and all(run.finished for run in runs)
        ):
            value = fmean(run.final_metric for run in runs)
            took = duration(time.monotonic() - job.began)
            self._record_state(
                job, FINISHED, f"{runs[0].metric.format_labelled(value)}, {took}", value=value
            )
        elif not job.is_recorded:
            self._say(job, "stopped; rerun the same command to resume it")
        job.lock.close()

    def found_step(self) -> bool:
        """Return whether a run of any trial of this search has made a step."""
        trials = self.engine.all_trials()
        if any(trial.reported or trial.state in (FINISHED, PRUNED) for trial in trials):
            return True
        # The rows of other processes' runs show steps of an epoch that has not ended.
        seeds = self.space.search.seeds
        planned = [run for trial in trials for run in self.space.valid_runs(trial.values, seeds)]
        return any((run := each.saved_run) and run.begun for each in planned)

    def _note_first_step(self) -> None:
        """Note that a run has made a step; record the trials that ended without one as failed."""
        self.any_run_stepped = True
        unstarted, self.ended_before_first_step = self.ended_before_first_step, {}
        for job, why in unstarted.values():
            self._record_state(job, FAILED, f"failed: {why}", why=why)
            job.lock.close()

    def _record_state(
        self, job: RunningTrial, state: str, text: str, *, value: float | None = None, why: str = ""
    ) -> None:
        """Record a trial's final state in the Optuna study, and print the trial with this text."""
        self.engine.tell(job.number, state, value=value, why=why)
        job.is_recorded = True
        self._say(job, text)

    def _say(self, job: RunningTrial, what: str) -> None:
        """Print a message about a trial, after the trial's number and its values."""
        number = job.number + 1  # above the budget where failed ones are tried again
        print_line(
            f"trial {number} of {max(number, self.budget)} ({format_values(job.values)}): {what}"
        )


def comparison_runs(space: SearchSpace, trials: Sequence[Trial]) -> dict[str, list[PlannedRun]]:
    """Return the runs that compare a search's best trial with the unchanged recipe, by label."""
    seeds, best = space.search.holdout_seeds, best_trial(trials)
    if best is None:
        return {}
    return {
        "the best trial": space.planned_runs(best.values, seeds),
        "the unchanged recipe": space.planned_runs({}, seeds),
    }


def _epochs(trial: PlannedRun) -> dict[int, float]:
    """Read a run's metric on its first evaluation set by epoch, as far as the run wrote it."""
    try:
        rows = filter(is_row, read_rows(trial.folder / "metrics.jsonl"))
        run = Run(trial.folder, trial.recipe, list(rows))
    except OSError:
        return {}
    values = {epoch: finite_number(row, run.metric.key) for epoch, row in run.epochs.items()}
    return {epoch: value for epoch, value in values.items() if value is not None}


def print_line(text: str) -> None:
    """Print one line of text, prefixed with the time of day."""
    print(f"{datetime.now():%H:%M:%S}  {text}", flush=True)
