"""Train the recipes of a study with each seed, and write a report; rerun the command to resume.

    python -m lsgd.study study=fashion_table1_warmup                  # one run after another
    python -m lsgd.study study=fashion_table1_warmup --print          # state, commands, power, cost
    python -m lsgd.study study=figure1 seeds=[0] --launch slurm --nodes 4    # arrays of jobs
    python -m lsgd.study study=digits epochs=10 --np 1 --jobs 2       # override a field in all runs
    python -m lsgd.study study=digits seeds=5 --until-decided         # more seeds for open claims

Each run is of one recipe with one seed, in processes of its own. The launcher `local`, or
that of --launch, starts these processes and takes its own options; a run gets no more processes
than it has workers. Its run folder is runs/trials/NAME-seedS-FINGERPRINT, and its output goes to a
.log file beside it. Studies share the runs that they have in common. The report is written to
runs/studies/NAME.

seeds=5, seeds=[0..4] or seeds=[0,3] select the seeds to train first, in place of those of the
study; the report covers all existing runs of its recipes, and tests a claim once both of its
recipes have as many seeds as the study names, whichever they are. --print estimates the difference
that these seeds can detect, from the standard deviation of existing runs or the one that the study
expects, and the cost of the runs. --until-decided tests the claims after every added seed, up to
--max-seeds, with intervals widened for these repeated looks, so that their overall confidence is
that of one look at 95 % (Pocock 1977).

A rerun of the command resumes unfinished runs. It skips those that are finished, and those that
have diverged, as they would diverge again. A run that fails does not stop the others; the end of
the output lists it with its last message. On Ctrl-C and SIGTERM the runs save a checkpoint and
exit. If the study is killed, its runs are killed too. Two studies in one folder share the work.

With slurm a study submits the runs that are not queued yet as one array, --jobs N at a time, and a
job that writes the report after them, and exits. A run gets as many GPUs as its steps fill, one for
small images, within --nodes; --gpus N gives N to each. Runs of different sizes make an array for
each size. --status prints each run's job, with its nodes and log. Rerun the command to submit again
what has failed. With k8s only --print works, as the
run folders are in the persistent volume claim.

exit code 0: all runs are finished; 1: some have failed or diverged; 2: usage error; 6: a disk is
full; 75: stopped by a signal, or jobs submitted. After 6 and 75 rerun the command to resume.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace

from lsgd.cost import cost_lines, limit_line
from lsgd.errors import PreemptedError, UsageError
from lsgd.job.command import run_alone
from lsgd.launch.options import LAUNCHERS
from lsgd.planned import PlannedRun, has_ended, limit_threads, print_jobs
from lsgd.report.claims import OPEN, Decision
from lsgd.report.findings import Findings
from lsgd.report.folder import check_libraries
from lsgd.report.look_record import note_added_seeds, plan_looks, read_added_seeds, read_looks
from lsgd.report.looks import Looks
from lsgd.study.planned_runs import check_sources, planned_runs, trained_seeds
from lsgd.study.power import power_lines
from lsgd.study.reporting import (
    locked_report,
    make_folders,
    report_folder,
    study_findings,
    write_report,
)
from lsgd.study.request import StudyRequest, read_request
from lsgd.study.run_queue import RunQueue
from lsgd.study.seeds import next_seeds, seed_order
from lsgd.study.slurm_jobs import job_arrays, report_script, submit_arrays
from lsgd.supervise import catch_stop_signals
from lsgd.tables import format_count

STOPPED = "stopped; rerun the same command to resume"


def run_study(argv: Sequence[str]) -> int:
    """Train or submit the runs of a study's command line, and report; return the exit code."""
    request = read_request(__doc__ or "", argv)
    if request.print_only or request.cost_only:
        print_plan(request)
        return 0
    if request.status_only:
        runs = [run for run in all_runs(request) if run.recipe.seed in request.seeds]
        return print_jobs({str(run): run for run in runs})
    if request.launcher.name == "k8s":
        raise UsageError(
            "a study cannot follow jobs on Kubernetes, whose runs are in the claim; write "
            "--print for the commands, and run lsgd.report on the runs"
        )
    if request.report_only:
        runs = all_runs(request)
        if not any(run.folder.is_dir() for run in runs):
            raise UsageError(
                f"--report-only finds no run of {request.study.name} in {runs[0].folder.parent}; "
                "leave it out to train them"
            )
        write_report(request.study, request.overrides, runs)
        return 0
    # A missing library of the report must not show only after hours of training.
    check_libraries()
    if request.jobs and request.jobs > 1:
        limit_threads(request.launcher, request.jobs)
    everything = all_runs(request)
    make_folders(request.study, everything)
    chosen = [trial for trial in everything if trial.recipe.seed in request.seeds]
    signals = catch_stop_signals()
    if request.max_seeds:
        code = train_until_decided(request, chosen, everything, request.max_seeds, signals)
    else:
        code = train_or_submit(request, chosen, everything, signals)
    if signals and code != PreemptedError.exit_code:
        print(STOPPED)
        return PreemptedError.exit_code
    return code


def train_until_decided(
    request: StudyRequest,
    chosen: Sequence[PlannedRun],
    everything: Sequence[PlannedRun],
    max_seeds: int,
    signals: Sequence[int],
) -> int:
    """Train or submit `chosen`, then add seeds until all claims are decided; return the exit code.

    The claims are tested after all runs of `chosen`, and after each round of added seeds. A round
    that was interrupted is finished first, so that a study that is resumed tests what one that is
    not interrupted does. After a stop signal no round begins.
    """
    folder = report_folder(request.study, everything)
    with locked_report(folder):
        plan_looks(folder, len(request.seeds), max_seeds)
    order = seed_order(request.study, max_seeds)
    wanted = adding = read_added_seeds(folder)
    code = 0
    while not signals:
        added = [t for t in everything if wanted.get(t.recipe.name) == t.recipe.seed]
        chosen = [*chosen, *(trial for trial in added if trial not in chosen)]
        code = max(code, train_or_submit(request, chosen, everything, signals))
        if signals or code == PreemptedError.exit_code:
            break
        findings = study_findings(request.study, request.overrides, everything)
        wanted = next_seeds(findings, order, adding)
        if not wanted:
            for decision in findings.decisions:
                print(verdict_line(decision, findings, max_seeds))
            break
        adding = adding | wanted
        with locked_report(folder):
            note_added_seeds(folder, adding)
        open_claims = sum(decision.outcome == OPEN for decision in findings.decisions)
        print(
            f"{format_count(open_claims, 'claim')} to decide: a seed more for {', '.join(wanted)}"
        )
        chosen = []
    return code


def verdict_line(decision: Decision, findings: Findings, max_seeds: int) -> str:
    """Return a line with a claim's verdict and its numbers of seeds, or why it has none."""
    pair = [
        group
        for group in findings.groups
        if group.recipe.name in (decision.claim.recipe, decision.claim.other)
    ]
    seeds = sorted({len(group.runs) for group in pair})
    counts = " and ".join(map(str, seeds))
    if decision.outcome == OPEN and seeds[0] < max_seeds:
        return f"not resolved with {counts} seeds, as a run has failed: {decision.claim.says}"
    return f"{decision.outcome} with {counts} seeds: {decision.claim.says}"


def all_runs(request: StudyRequest) -> list[PlannedRun]:
    """Return a study's planned runs for its seeds, seeds that may be added, and seeds on disk."""
    asked = request.study
    seeds = {*seed_order(asked, request.max_seeds or len(asked.seeds)), *trained_seeds(asked)}
    return planned_runs(replace(asked, seeds=sorted(seeds)), request.overrides)


def print_plan(request: StudyRequest) -> None:
    """Print each run's state and command, and the statistical power and cost of the study."""
    everything = all_runs(request)
    chosen = [trial for trial in everything if trial.recipe.seed in request.seeds]
    on_slurm = request.launcher.name == "slurm"
    for trial in () if request.cost_only else chosen:
        run = trial.saved_run
        print(f"# {trial}: {run.state if run else 'not started'}")
        if not has_ended(run) and not on_slurm:
            print(shlex.join(request.launcher.command(trial)), flush=True)
    if on_slurm and not request.cost_only:
        print_scripts(request, [trial for trial in chosen if not has_ended(trial.saved_run)])
    findings = study_findings(request.study, request.overrides, everything)
    for line in power_lines(request.study, findings.groups, planned_looks(request, everything)):
        print(f"# {line}", flush=True)
    compared = {name for claim in request.study.claims for name in (claim.recipe, claim.other)}
    order = seed_order(request.study, request.max_seeds) if request.max_seeds else []
    added = [t for t in everything if t.recipe.name in compared and t.recipe.seed in order]
    todo, possible = (
        [trial for trial in trials if not has_ended(trial.saved_run)]
        for trials in (chosen, [trial for trial in added if trial not in chosen])
    )
    at_once = request.jobs or (max(1, len(todo)) if on_slurm else 1)
    costs = cost_lines(
        request.launcher, todo, possible, findings.groups, at_once, request.images_per_second
    )
    for line in filter(None, [*costs, limit_line(request.launcher, todo)]):
        print(f"# {line}")


def planned_looks(request: StudyRequest, everything: Sequence[PlannedRun]) -> Looks:
    """Return the recorded tests of a study's claims, and those after the requested seeds.

    The runs of other seeds that have ended are tested too. If both recipes of no claim will have
    enough seeds, it is the largest number that both will have.
    """
    study = request.study
    seeds = {
        group.recipe.name: len({*request.seeds, *(run.recipe.seed for run in group.runs)})
        for group in study_findings(study, request.overrides, everything).groups
    }
    pairs = [min(seeds[claim.recipe], seeds[claim.other]) for claim in study.claims]
    pairs = pairs or [len(request.seeds)]
    tested = [number for number in pairs if number >= study.needed_seeds] or [max(pairs)]
    first = len(request.seeds) if request.max_seeds else min(tested)
    had = read_looks(report_folder(study, everything)) or Looks(first, first)
    return Looks(min(first, had.first), max(*tested, had.last, request.max_seeds or 0))


def print_scripts(request: StudyRequest, todo: Sequence[PlannedRun]) -> None:
    """Print the batch scripts that Slurm gets for these runs, and for the report on them."""
    arrays = [*job_arrays(request.launcher, request.study.name, todo, request.jobs)]
    for array in arrays:
        print(f"# {format_count(len(array.runs), 'job')}, processes of each: {array.processes}")
        print(array.script)
    if arrays:
        print("# after them:")
        arguments = study_arguments(request)
        print(report_script(request.launcher, request.study.name, arguments), flush=True)


def study_arguments(request: StudyRequest) -> list[str]:
    """Return the arguments that name a request's study, its seeds and its overrides."""
    seeds = ",".join(map(str, request.seeds))
    return [*request.study.command_arguments, f"seeds=[{seeds}]", *request.overrides]


def train_or_submit(
    request: StudyRequest,
    chosen: Sequence[PlannedRun],
    everything: Sequence[PlannedRun],
    signals: Sequence[int],
) -> int:
    """Train or submit the unfinished runs of `chosen`; write the report; return the exit code."""
    check_sources(request.study, {trial.recipe.seed for trial in chosen})
    launcher = request.launcher
    runs = {str(trial): trial.saved_run for trial in chosen}
    todo = [trial for trial in chosen if not has_ended(runs[str(trial)])]
    failed = {
        name: run.state for name, run in runs.items() if run and has_ended(run) and not run.finished
    }
    count = format_count(len(chosen), "run")
    print(f"{request.study.name}: {count}, {len(todo)} to train", flush=True)
    if LAUNCHERS[launcher.name].submits:
        if line := limit_line(launcher, todo):
            print(line, flush=True)
        failed |= submit_arrays(
            launcher, request.study.name, todo, request.jobs, study_arguments(request)
        )
        why = f"{launcher.name} trains the rest; rerun the same command to submit what has failed"
    else:
        failed |= RunQueue(launcher, todo, signals).train(request.jobs or 1)
        why = STOPPED
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    if not signals:
        write_report(request.study, request.overrides, everything)
    if any(str(trial) not in failed and not has_ended(trial.saved_run) for trial in todo):
        print(why)
        return PreemptedError.exit_code
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run the command line `python -m lsgd.study` and return its exit code."""
    return run_alone(lambda: run_study(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
