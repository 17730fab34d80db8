"""A hyper-parameter search on Slurm: job arrays that train its trials, and a job that reports.

A job of the first array takes a trial that another job has left or the next one of the sampler, so
that a trial learns from all that have ended before it. The jobs of the second array compare the
best trial with the unchanged recipe, and a last job writes the report.
"""

import os
import subprocess
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lsgd import planned
from lsgd.cost import mean_work, speed, threads
from lsgd.errors import NotSavedError, PreemptedError, UsageError
from lsgd.launch.processes import gpus_per_machine
from lsgd.launch.sbatch_options import time_limit
from lsgd.launch.slurm import cores_advice, slurm_program_array, slurm_task
from lsgd.launch.submission import (
    MOST_JOBS,
    is_active,
    most_array_jobs,
    new_answer_file,
    sbatch,
    split_cluster,
    submitted_job,
)
from lsgd.planned import PlannedRun, RunLauncher, has_ended, runs_here
from lsgd.report.groups import RecipeRuns
from lsgd.run.remaining import duration
from lsgd.search.backends import JobStepBackend, JobStepLauncher
from lsgd.search.command_line import COMPARISON, TRIAL, SearchRequest
from lsgd.search.controller import UNSTARTED, Controller, comparison_runs, print_line
from lsgd.search.folder import hold_lock
from lsgd.search.space import crashed_trials
from lsgd.search.trial import FINISHED, RUNNING, Trial, best_trial
from lsgd.supervise import catch_stop_signals
from lsgd.tables import format_count

if TYPE_CHECKING:
    from lsgd.search.optuna_study import OptunaStudy

JOBS = "jobs"
"""The folder, in that of a search, with the scripts, job numbers and logs of its Slurm jobs."""

TIMED_TRIALS = 5
"""The number of finished trials whose speed is that of the others."""


@dataclass(frozen=True)
class PendingWork:
    """The trials and comparison runs of a search that have not ended."""

    trials: int
    comparisons: list[int]
    """The numbers of comparison runs: those of the best trial, then of the unchanged recipe."""


@dataclass(frozen=True)
class TrialArray:
    """An array of Slurm jobs that each train a trial or a comparison run of a search."""

    kind: str
    jobs: int
    at_once: int | None
    """The number of jobs that may run at a time; None for all."""
    script: str


def pending_work(
    request: SearchRequest, trials: Sequence[Trial], here: Container[int] | None = None
) -> PendingWork:
    """Return what is left to train of a search with these trials.

    `here` are the numbers of the trials of this folder, if a database may have those of others.
    """
    space = request.space
    left = max(0, space.search.trial_count - len(trials))
    left += sum(t.state == RUNNING and (here is None or t.number in here) for t in trials)
    seeds = space.search.holdout_seeds
    best = None if left else best_trial(trials)
    if not seeds or not (left or best):
        return PendingWork(left, [])
    # Before all trials have ended, the best one is unknown, and its runs are to be trained.
    of_best: list[PlannedRun | None] = [None] * len(seeds)
    if best:
        of_best = [*space.planned_runs(best.values, seeds)]
    runs = [*of_best, *space.planned_runs({}, seeds)]
    unfinished = [n for n, run in enumerate(runs) if not (run and has_ended(run.saved_run))]
    return PendingWork(left, unfinished)


def fit(request: SearchRequest) -> tuple[int, dict[str, str]]:
    """Return the number of processes and the launcher's options of each job of a search.

    All jobs of an array have the same resources, so they are those that the smallest steps fill.
    """
    fitted = [request.launcher.fit(recipe) for recipe in request.space.corner_recipes]
    return min(fitted, key=lambda found: found[0])


def trials_at_once(request: SearchRequest) -> int | None:
    """Return the number of trials that are trained at a time; None for all.

    By default a trial that depends on the others waits for them, as it does on one machine.
    """
    search = request.space.search
    is_independent = search.sampler in ("grid", "random") and not search.prune
    return request.jobs or (None if is_independent else 1)


def trial_arrays(
    request: SearchRequest, folder: Path, work: PendingWork, most_jobs: int = MOST_JOBS
) -> Iterator[TrialArray]:
    """Yield the arrays that train what is left of a search, of at most `most_jobs` jobs each.

    Each is to begin after the one before it has ended.
    """
    _, options = fit(request)
    if advice := cores_advice(options):
        print(f"lsgd: {advice}", file=sys.stderr)
    [unchanged] = request.space.planned_runs({}, request.space.search.seeds[:1])
    # Its overrides are those of all trials, and name the folders that a container has to see.
    step = RunLauncher("slurm", options).request(unchanged)
    sizes = [min(most_jobs, work.trials - start) for start in range(0, work.trials, most_jobs)]
    parts = [(TRIAL, size, trials_at_once(request), f"0-{size - 1}") for size in sizes]
    if numbers := work.comparisons:
        parts.append((COMPARISON, len(numbers), request.jobs, ",".join(map(str, numbers))))
    for kind, size, at_once, indexes in parts:
        script = slurm_program_array(
            step,
            ["-m", "lsgd.search", *request.arguments, "--array-job", kind],
            f"{folder.name}-{kind}",
            f"{folder / JOBS}/{kind}-%A_%a.log",
            f"{indexes}%{at_once}" if at_once else indexes,
        )
        yield TrialArray(kind, size, at_once, script)


def report_script(request: SearchRequest, folder: Path) -> str:
    """Return the batch script of the job that writes a search's report."""
    command = ["-m", "lsgd.search", *request.arguments, "--report-only"]
    log = f"{folder / JOBS}/report-%j.log"
    return slurm_task(request.launcher.options, command, f"{folder.name}-report", log)


def print_jobs(request: SearchRequest, folder: Path, trials: Sequence[Trial]) -> None:
    """Print the batch scripts of what is left of a search, in their order, and its cost."""
    work, (processes, _) = pending_work(request, trials), fit(request)
    arrays = [*trial_arrays(request, folder, work)]
    for number, array in enumerate(arrays):
        print(
            f"# {'after it: ' if number else ''}{format_count(array.jobs, 'job')}, each of one "
            f"{'trial' if array.kind == TRIAL else 'run that compares'}, processes: {processes}"
        )
        print(array.script)
    if arrays:
        print(f"# after {'them' if len(arrays) > 1 else 'it'}:")
        print(report_script(request, folder), flush=True)
    for line in cost_lines(request, work, trials):
        print(f"# {line}")


def print_status(request: SearchRequest, trials: Sequence[Trial], folder: Path) -> int:
    """Print the progress and the Slurm job of each run of a search; return the exit code.

    It is 1 if something is left to train and no job is queued or running for it, else 0.
    """
    space = request.space
    runs, settled = dict[str, PlannedRun](), set[str]()
    for trial in trials:
        for run in space.valid_runs(trial.values, space.search.seeds):
            name = f"trial {trial.number + 1}, seed {run.recipe.seed}"
            runs[name] = run
            if trial.state != RUNNING:  # a pruned or failed one is not trained on
                settled.add(name)
    for name, compared in comparison_runs(space, trials).items():
        runs |= {f"{name}, seed {run.recipe.seed}": run for run in compared}
    submitted = {
        job: path.stem.rpartition("-")[0]
        for path in sorted((folder / JOBS).glob("*.job"))
        if (job := submitted_job(path))
    }
    work = pending_work(request, trials)
    runs_left = bool(work.trials or work.comparisons)
    return planned.print_jobs(runs, submitted, runs_left=runs_left, settled=settled)


def cost_lines(request: SearchRequest, work: PendingWork, trials: Sequence[Trial]) -> list[str]:
    """Return sentences on the time and the GPU hours of what is left of a search.

    They are by the speed of its trials' runs, by --images-per-second, by a timed step or lsgd.plan,
    and by the limit of --time.
    """
    space, launcher = request.space, request.launcher
    runs_left = work.trials * len(space.search.seeds) + len(work.comparisons)
    if not runs_left:
        return []
    on_slurm = launcher.name == "slurm"
    processes, options = fit(request) if on_slurm else launcher.fit(space.recipe({}))
    fitted = RunLauncher(launcher.name, options)
    [unchanged] = space.planned_runs({}, space.search.seeds[:1])
    recipe = unchanged.recipe
    ended = [trial for trial in trials if trial.state == FINISHED][-TIMED_TRIALS:]
    planned = [run for t in ended for run in space.planned_runs(t.values, space.search.seeds)]
    runs = [run for each in planned if (run := each.saved_run)]
    at_once = trials_at_once(request) if on_slurm else request.jobs or 1
    at_once = min(at_once or runs_left, max(work.trials, len(work.comparisons)))
    group = RecipeRuns("", recipe, None, None, runs)
    beside = at_once if runs_here(launcher) else 1
    rate, source = speed(fitted, unchanged, group, request.images_per_second, jobs=beside)
    trials_left = [format_count(work.trials, "trial")] if work.trials else []
    compared = [f"{format_count(len(work.comparisons), 'run')} that compare"]
    what = " and ".join([*trials_left, *(compared if work.comparisons else [])])
    # Runs that have begun count in full, and pruned ones too.
    if rate is None:
        lines = [
            f"cost: how fast {recipe.name} would be trained is unknown; write the speed of one GPU "
            "as --images-per-second X"
        ]
    else:
        # A search over epochs may choose the longest run for each trial.
        examples = max(
            each.epochs * each.train_examples * mean_work(each) for each in space.corner_recipes
        )
        seconds = examples / rate
        # The runs of a trial follow one another, and its trials precede the comparisons.
        rounds = -(-work.trials // at_once) * len(space.search.seeds)
        rounds += -(-len(work.comparisons) // at_once)
        gpus = gpus_per_machine(launcher.name, options) is not None
        cores = 1 if gpus else int(options.get("--cpus", 0)) or threads(processes, at_once)
        lines = [
            f"cost: {what}, at most {runs_left * seconds * processes * cores / 3600:,.1f} "
            f"{'GPU' if gpus else 'CPU'} hours, {duration(rounds * seconds)} "
            f"{'one after another' if at_once == 1 else f'together, {at_once} at a time'} "
            f"({recipe.name} by {source})"
        ]
    limit = time_limit(options.get("--time", ""))
    if on_slurm and limit is not None and "--np" not in options:
        jobs = work.trials + len(work.comparisons)
        lines.append(
            f"cost by --time {options['--time']}: at most {jobs * processes * limit / 3600:,.1f} "
            "GPU hours, if no job is requeued"
        )
    return lines


def submit_search(request: SearchRequest, engine: "OptunaStudy", folder: Path) -> bool:
    """Submit what is left of a search, unless its jobs are queued; return whether any is queued.

    Raises UsageError if the first array is refused, or if squeue cannot answer.
    """
    with hold_lock(folder, "submit"):
        if queued := _queued_jobs(folder):
            jobs = f"job{'s' if len(queued) > 1 else ''} {', '.join(queued)}"
            are = "are" if len(queued) > 1 else "is"
            print_line(f"{jobs} of this search {are} pending or running")
            return True
        if request.retries:
            # They are the first trials that the jobs take.
            for trial in crashed_trials(request.space, engine.all_trials()):
                engine.values(engine.ask(trial))
        trials = engine.all_trials()
        work = pending_work(request, trials, engine.trial_numbers_here())
        if not work.trials and not work.comparisons:
            return False
        if gpus_per_machine("slurm", request.launcher.options) is not None:
            for line in cost_lines(request, work, trials):
                print_line(line)
        _submit(request, folder, work)
    return True


def _queued_jobs(folder: Path) -> list[str]:
    """Return the numbers of a search's Slurm jobs and arrays that are pending or running."""
    jobs = [job for path in (folder / JOBS).glob("*.job") if (job := submitted_job(path))]
    try:
        by_number = sorted(jobs, key=lambda job: int(split_cluster(job)[0]))
        return [job for job in by_number if is_active(job)]
    except UsageError as error:
        raise UsageError(
            f"it is unknown whether jobs of this search are queued ({error}); submit it where "
            f"squeue works, or remove {folder / JOBS} if they have ended"
        ) from None


def _submit(request: SearchRequest, folder: Path, work: PendingWork) -> None:
    """Submit the arrays of a search and the job of its report, each after those before it."""
    (processes, _), submitted = fit(request), list[str]()
    for array in trial_arrays(request, folder, work, most_array_jobs()):
        answer = new_answer_file(folder / JOBS, array.kind)
        try:
            job = sbatch(array.script, answer, after=submitted)
        except (UsageError, OSError) as error:
            if not submitted:  # the site's rules, which the others would break too
                raise
            print_line(f"{array.kind} jobs are not queued: {error}")
            break
        submitted.append(job)
        limit = f", {array.at_once} at a time" if array.at_once else ""
        print_line(
            f"job {job}: {format_count(array.jobs, array.kind)}, processes of each: {processes}"
            f"{limit}"
        )
    if request.jobs is None and trials_at_once(request) == 1 and work.trials > 1:
        print_line(
            "each trial waits for the one before it, from which it learns; --jobs N trains N at a "
            "time"
        )
    answer = new_answer_file(folder / JOBS, "report")
    try:
        job = sbatch(report_script(request, folder), answer, after=submitted)
        print_line(f"job {job} will write the report into {folder}")
    except (UsageError, OSError) as error:
        print_line(f"no job will write the report: {error}")


def run_array_job(request: SearchRequest, engine: "OptunaStudy", folder: Path) -> int:
    """Train the trial or comparison run of this Slurm job; return the exit code.

    An error that the other jobs of the array would meet too cancels those that are pending. A usage
    error is none once another trial has made a step: it may be of this job's node.
    """
    signals = catch_stop_signals()
    backend = JobStepBackend(JobStepLauncher("srun", {}, request.step), signals)
    controller = Controller(request.space, engine, backend, folder, signals, most_trials=1)
    try:
        if request.array_job == COMPARISON:
            code = _compare(request, controller, int(os.environ["SLURM_ARRAY_TASK_ID"]))
        else:
            code = _train_trial(controller)
    except (UsageError, NotSavedError) as error:
        if isinstance(error, NotSavedError) or not controller.found_step():
            _cancel_pending()
        raise
    if signals:
        print_line("stopped; a requeued job resumes it")
        return PreemptedError.exit_code
    return code


def _train_trial(controller: Controller) -> int:
    """Train the next trial of a search; return 0 if it has a value, or if none is left."""
    controller.search(1)
    unstarted = len(controller.ended_before_first_step)
    if unstarted and unstarted >= min(UNSTARTED, controller.budget):
        controller.signals.clear()  # by which the controller has ended itself
        print_line(
            "the first trials all ended before their first step, which their values do not cause: "
            "the array's pending jobs are cancelled; fix that and rerun the command of the search"
        )
        _cancel_pending()
    if unstarted:
        return 1
    if not controller.claimed:
        print_line("no trial is left to train")
    crashed = crashed_trials(controller.space, controller.engine.all_trials())
    return int(any(trial.number in controller.claimed for trial in crashed))


def _compare(request: SearchRequest, controller: Controller, number: int) -> int:
    """Train a comparison run by its number; return 1 if it has failed or is not known yet."""
    controller.fail_unstarted()
    trials = controller.engine.all_trials()
    if left := pending_work(request, trials).trials:
        print_line(
            f"{format_count(left, 'trial')} of the search {'has' if left == 1 else 'have'} not "
            "ended, so that the best one is unknown; rerun the command of the search"
        )
        return 1
    named = [
        (name, run) for name, runs in comparison_runs(request.space, trials).items() for run in runs
    ]
    if number >= len(named):
        print_line(f"no trial has {FINISHED}, so that there is nothing to compare")
        return 1
    name, run = named[number]
    controller.compare(name, [run], 1)
    return int(not has_ended(run.saved_run))


def _cancel_pending() -> None:
    """Cancel the jobs of this array that have not begun."""
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        subprocess.run(["scancel", "--state=PENDING", array], capture_output=True)
