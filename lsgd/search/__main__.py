"""Search hyper-parameters with Optuna: train trials from a search space and report the best one.

    python -m lsgd.search search=digits                         # one run after another
    python -m lsgd.search search=digits --jobs 2                # two at a time
    python -m lsgd.search search=digits --print                 # show what is done, what would run
    python -m lsgd.search recipe=digits 'optim.momentum=[0.8,0.9]'   # a grid, without a file
    python -m lsgd.search search=digits sampler=gp trials=20    # override fields of the search …
    python -m lsgd.search search=digits worker_batch=32         # … or of the recipe, for all trials
    python -m lsgd.search --report runs/searches/a runs/searches/b --out FOLDER   # one page on both
    python -m lsgd.search search=digits --launch slurm --gpus 1 --jobs 8    # an array, 8 at a time
    python -m lsgd.search search=digits --launch spark --master spark://HOST:7077 --jobs 8

A trial is one point of the search space, which is in recipes/search/NAME.yaml: one value for each
of its fields. Each trial is trained once with each of `seeds`, and its value is the mean of the
final metrics of these runs. The runs are in runs/trials/NAME-seedS-FINGERPRINT; a run that a study
or another search has already finished is not trained again.

    sampler=grid|random|tpe|gp    how the next point is chosen; sampler_seed=N for another series
    trials=N                      the number of trials; raise it later to extend the same search
    prune={rule: median}          stop trials that are, after an epoch, worse than half of the
                                  others were at that epoch with the same seed, whatever they were
                                  before; their runs save a checkpoint, and run_dir=… resumes one
    seeds=[0,1]                   the seeds with which each trial is trained
    holdout_seeds=[2,3]           other seeds, to compare the best trial with the recipe itself

Rerun the same command to resume, also after a kill: the trials are in a journal in
runs/searches/NAME, which optuna-dashboard can open. A resumed search first finishes the trials that
have begun; with one job it then tries the same points as an uninterrupted search. Several searches
in one folder share the work. A run that diverges has failed; a run that crashes is restarted once.
On Ctrl-C and SIGTERM the runs save a checkpoint and exit.

With slurm a search submits an array with one job for each trial that is left, --jobs N at a time,
an array that compares the best trial, and a job that writes the report after them, and exits. A job
takes an abandoned trial or the next of the sampler as it starts, and resumes it when requeued. It
gets as many GPUs as its steps fill, one for small images, within --nodes, or --gpus N. Without
--jobs all are trained at a time if no trial depends on others (grid and random without pruning),
else one. --status prints the job of each run, with its nodes and log. Rerun the command once they
have ended to submit what is left. --print shows the scripts and the GPU hours, as does lsgd plan
search=NAME.

exit code 0: every trial has ended; 1: all have failed, or the first ones before their first step,
as where a machine is at fault, or a run that compares; 2: the command or a run was refused; 6: a
disk is full; 75: stopped by a signal, or jobs submitted. After 6 and 75, rerun the same command to
resume.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lsgd.errors import PreemptedError, UsageError
from lsgd.files import create_output_folder
from lsgd.job.command import run_alone
from lsgd.launch.submission import find_sbatch
from lsgd.planned import has_ended, limit_threads
from lsgd.report.folder import check_libraries
from lsgd.search.backends import TrialBackend, backend_for
from lsgd.search.command_line import ReportRequest, SearchRequest, read_request
from lsgd.search.controller import UNSTARTED, Controller, comparison_runs, print_line
from lsgd.search.folder import (
    check_folder,
    definition_hash,
    folder_id,
    hold_lock,
    open_folder,
    search_folder,
)
from lsgd.search.record import check_comparable, load_record, make_record, save_record
from lsgd.search.report import write_page
from lsgd.search.slurm_jobs import (
    cost_lines,
    pending_work,
    print_jobs,
    print_status,
    run_array_job,
    submit_search,
)
from lsgd.search.space import SearchSpace, crashed_trials, format_values, overrides_of
from lsgd.search.trial import FAILED, FINISHED, RUNNING, Trial, best_trial
from lsgd.supervise import catch_stop_signals
from lsgd.tables import format_count

if TYPE_CHECKING:
    from lsgd.search.optuna_study import OptunaStudy


def search(argv: Sequence[str]) -> int:
    """Run the search or the report that the command line asks for; return the exit code."""
    request = read_request(__doc__ or "", argv)
    if isinstance(request, ReportRequest):
        return report(request)
    if not request.array_job:  # it was checked before that was submitted
        request.space.check()
    place = backend_for(request.launcher)
    # Imported here, so that --help works without Optuna.
    from lsgd.search.optuna_study import OptunaStudy, load_trials

    if request.print_only or request.cost_only or request.report_only or request.status_only:
        folder = search_folder(request.space)
        check_folder(folder, request.space)
        search, definition = request.space.search, definition_hash(request.space)
        points = load_trials(search, folder, request.storage, definition=definition)
        if request.status_only:
            return print_status(request, points, folder)
        if request.report_only:
            report_only(request, points, folder)
        else:
            print_plan(request, points, folder)
        return 0
    on_slurm = request.launcher.name == "slurm"
    if on_slurm:
        find_sbatch()
    if not request.array_job:
        # Fail before the training rather than after it.
        check_libraries("search")
    folder = open_folder(request.space)
    engine = OptunaStudy(
        request.space.search,
        folder,
        request.storage,
        definition=definition_hash(request.space),
        folder_id=folder_id(folder),
    )
    if request.array_job:
        return run_array_job(request, engine, folder)
    if on_slurm:
        return submit(request, engine, folder)
    jobs = request.jobs or 1
    if jobs > 1:
        limit_threads(request.launcher, jobs)
    with place.open(folder, jobs, prunes=bool(request.space.search.prune)):
        return run_search(request, engine, place, folder, jobs)


def submit(request: SearchRequest, engine: "OptunaStudy", folder: Path) -> int:
    """Submit what is left of a search to Slurm, or report if nothing is; return the exit code."""
    print_progress(request, engine.all_trials(), folder)
    if submit_search(request, engine, folder):
        print_line("Slurm trains the rest; rerun the same command for what has not ended then")
        return PreemptedError.exit_code
    points = engine.all_trials()
    write_results(request, points, folder)
    return final_code(request.space, points)


def print_progress(request: SearchRequest, points: Sequence[Trial], folder: Path) -> None:
    """Print how many trials of a search have ended."""
    done = sum(point.state != RUNNING for point in points)
    print_line(f"{folder}: {request.space.search.trial_count} trials, {done} of them done")


def run_search(
    request: SearchRequest, engine: "OptunaStudy", place: TrialBackend, folder: Path, jobs: int
) -> int:
    """Train a search's trials, compare the best with the recipe, report; return the exit code.

    `jobs` trials are trained at a time.
    """
    signals = catch_stop_signals()  # after Spark, which installs a handler of its own
    controller = Controller(request.space, engine, place, folder, signals)
    print_progress(request, engine.all_trials(), folder)
    if request.retries:
        controller.retry_failed()
    controller.search(jobs)
    points = engine.all_trials()
    # A single one may be the trial's own fault, where a signal has stopped the search.
    if len(controller.ended_before_first_step) >= min(UNSTARTED, controller.budget):
        [(_, why), *_] = controller.ended_before_first_step.values()
        print_line(
            f"the first trials all ended before their first step ({why}), which their values do "
            "not cause; fix that and rerun the same command to retry them"
        )
        return 1
    elsewhere = [point.number for point in points if point.state == RUNNING and not signals]
    if not signals and not elsewhere:
        for name, trials in comparison_runs(request.space, points).items():
            controller.compare(name, trials, jobs)
    write_results(request, points, folder)
    if signals:
        print_line("stopped; rerun the same command to resume")
        return PreemptedError.exit_code
    if elsewhere:
        # Only a person knows whether a folder is gone, or its search is to be resumed.
        print_line(
            f"waiting for {format_count(len(elsewhere), 'trial')} of another folder; rerun the "
            "same command later, or, if that folder is gone, with --retry-failed after "
            f"optuna tell {engine.where} --study-name {folder.name} --state fail --trial-number N "
            f"for N={','.join(map(str, elsewhere))}"
        )
        return PreemptedError.exit_code
    return final_code(request.space, points)


def final_code(space: SearchSpace, points: Sequence[Trial]) -> int:
    """Return the exit code of a search that has ended, and say why if it is not 0."""
    if all(point.state == FAILED for point in points):
        print_line(
            f"all trials have failed, the last because: {points[-1].why}; fix that and retry them "
            "with --retry-failed"
        )
        return 1
    if crashed := crashed_trials(space, points):
        print_line(
            f"{format_count(len(crashed), 'trial')} crashed, the last because: "
            f"{crashed[-1].why or 'unknown'}; fix that and retry with --retry-failed"
        )
    compared = [run for runs in comparison_runs(space, points).values() for run in runs]
    failed = [run for run in compared if not ((saved := run.saved_run) and saved.finished)]
    if failed:
        print_line(
            f"the report has no comparison with the unchanged recipe, as {len(failed)} of its "
            f"{len(compared)} runs have failed; rerun the same command to retry those that have "
            "not diverged"
        )
    return int(bool(failed))


def report_only(request: SearchRequest, points: Sequence[Trial], folder: Path) -> None:
    """Write the report on a search as far as it is; raise UsageError if it has not begun."""
    if not points:
        raise UsageError(f"{folder} has no trial to report on; leave out --report-only")
    check_libraries("search")
    write_results(request, points, folder)
    running = sum(point.state == RUNNING for point in points)
    left = request.space.search.trial_count - len(points) + running
    if left > 0:
        print_line(f"trials that have not ended: {left}; rerun the command of the search for them")


def write_results(request: SearchRequest, points: Sequence[Trial], folder: Path) -> None:
    """Write a hyper-parameter search's record and report page, and print its best trial."""
    command = shlex.join(
        ["python", "-m", "lsgd.search", *request.space.search.command_arguments, *request.overrides]
    )
    record = make_record(request.space, points, folder.name, command)
    with hold_lock(folder, "report"):
        save_record(record, folder)
        write_page([record], folder, command)
    best = best_trial(points)
    if best and best.value is not None:
        print_line(
            f"best: {record.metric.format_labelled(best.value)} with "
            f"{' '.join(overrides_of(best.values))}"
        )
    elif any(point.state == FINISHED for point in points):
        print_line(f"no trial has reached its target: {record.metric.label}")
    print(f"report: {folder / 'index.html'}", flush=True)


def report(request: ReportRequest) -> int:
    """Write one report page on the searches in several folders; return the exit code."""
    records = [load_record(folder) for folder in request.folders]
    check_comparable(request.folders, records)
    with create_output_folder(request.out) as out:
        assert out
        command = ["python", "-m", "lsgd.search", "--report", *map(str, request.folders)]
        write_page(records, out, shlex.join([*command, "--out", str(out)]))
    print(request.out / "index.html")
    return 0


def print_plan(request: SearchRequest, points: Sequence[Trial], folder: Path) -> None:
    """Print the state of each trial, and the commands of the unfinished runs of running trials.

    On Slurm it prints the batch scripts in place of the commands, and the cost of what is left.
    """
    on_slurm = request.launcher.name == "slurm"
    if request.cost_only:
        for line in cost_lines(request, pending_work(request, points), points):
            print(line)
        return
    print(f"# {folder}: {request.space.search.trial_count} trials, {len(points)} of them started")
    for point in points:
        value = "" if point.value is None else f" {point.value:.4g}"
        print(
            f"# {point.number + 1}: {format_values(point.values)}: {point.state}{value} {point.why}"
        )
        if point.state == RUNNING and not on_slurm:
            for trial in request.space.valid_runs(point.values, request.space.search.seeds):
                if not has_ended(trial.saved_run):
                    print(shlex.join(request.launcher.command(trial)))
    if on_slurm:
        print_jobs(request, folder, points)


def main(argv: Sequence[str]) -> int:
    """Run `python -m lsgd.search` with these arguments; return the exit code."""
    return run_alone(lambda: search(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
