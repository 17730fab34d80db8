"""Many runs, one table: `python -m lsgd.study` trains the trials of a study and reports on them.

    python -m lsgd.study +study=fashion_table1_warmup                 # one after another
    python -m lsgd.study +study=fashion_table1_warmup --print         # what is done, what would run
    python -m lsgd.study +study=figure1 seeds=[0] --launch slurm --nodes 4   # 11 jobs, 1 to 4 nodes
    python -m lsgd.study +study=digits epochs=10 --np 1 --jobs 2      # words hold for every trial

A trial is one recipe and one seed, in processes of its own, which a launcher of lsgd.launch starts:
local, or that of --launch, with the options of that launcher: of the processes and machines that
they ask for, a trial gets no more than it has workers. It lies in
runs/trials/NAME-seedS-FINGERPRINT, beside a .log of what it prints; studies that have a trial in
common find it there done. The report is written to runs/studies/NAME.

The same command goes on where it stopped: what is finished is not trained again, nor what has
diverged, as the same words would diverge again; anything else resumes. A trial that fails is named
at the end, with what it said, and costs no other. Ctrl-C and SIGTERM make the trials save and
leave. Killed itself, the study takes its trials along. Two studies in one folder share the work.

slurm only submits. A study submits what is not queued yet and ends; the same command, once they
are through, writes the report. With k8s there is --print alone: its runs lie in the claim.

exit code 0: every trial is finished; 1: some have failed or diverged; 2: refused; 75: told to stop,
or submitted, and the same command goes on.
"""

import shlex
import sys
from collections.abc import Sequence

from lsgd.errors import Preempted, Refused
from lsgd.job.command import run_alone
from lsgd.launch.options import LAUNCHERS
from lsgd.report.libraries import check_libraries
from lsgd.study.queue import submit
from lsgd.study.reporting import write_report
from lsgd.study.running import Work
from lsgd.study.trials import trials
from lsgd.study.words import StudyRequest, read_request
from lsgd.supervise.signals import catch_stop_signals
from lsgd.trials.launch import share_cores
from lsgd.trials.trial import Trial, ended


def study(argv: Sequence[str]) -> int:
    """Do what the words ask for; returns the exit code, which is 0 once every trial is finished."""
    request = read_request(__doc__ or "", argv)
    everything = trials(request.study, request.words)
    chosen = [trial for trial in everything if trial.recipe.seed in request.seeds]
    if request.prints:
        for trial in chosen:
            run = trial.run
            print(f"# {trial}: {run.state if run else 'not started'}")
            if not ended(run):
                print(shlex.join(request.launcher.command(trial)))
        return 0
    if request.launcher.name == "k8s":
        raise Refused(
            "a study does not see what becomes of jobs on Kubernetes, whose runs lie in the "
            "claim; write --print for the commands, and run lsgd.report on the runs"
        )
    # Better now than when all is trained.
    check_libraries()
    if request.jobs > 1:
        share_cores(request.launcher, request.jobs)
    return work(request, chosen, everything)


def work(request: StudyRequest, chosen: Sequence[Trial], everything: Sequence[Trial]) -> int:
    """Train or submit what is left of the chosen, and report on all; return the exit code."""
    launcher = request.launcher
    runs = {str(trial): trial.run for trial in chosen}
    todo = [trial for trial in chosen if not ended(runs[str(trial)])]
    failed = {
        name: run.state for name, run in runs.items() if run and ended(run) and not run.finished
    }
    print(f"{request.study.name}: {len(chosen)} trials, {len(todo)} to train", flush=True)
    signals = catch_stop_signals()
    if LAUNCHERS[launcher.name].submits:
        failed |= submit(launcher, todo, signals)
        why = f"{launcher.name} has submitted the rest; the same command, later, ends the study"
    else:
        failed |= Work(launcher, todo, signals).train(request.jobs)
        why = "stopped; the same command goes on"
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    if not signals:
        write_report(request.study, request.words, everything)
    if any(str(trial) not in failed and not ended(trial.run) for trial in todo):
        print(why)
        return Preempted.exit_code
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: study(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
