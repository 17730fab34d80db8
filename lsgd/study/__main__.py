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
from lsgd.report.libraries import check_libraries
from lsgd.study.launch import TrialLauncher, share_cores
from lsgd.study.queue import submit
from lsgd.study.reporting import write_report
from lsgd.study.running import Work
from lsgd.study.trials import Trial, ended, trials
from lsgd.study.words import StudyParser, StudyRequest
from lsgd.supervise.signals import StopSignals


def show(launcher: TrialLauncher, everything: Sequence[Trial]) -> None:
    """Print what is done, and the commands for what is not; start nothing."""
    for trial in everything:
        run = trial.run
        print(f"# {trial}: {run.state if run else 'not started'}")
        if not ended(run):
            print(shlex.join(launcher.command(trial)))


def run(request: StudyRequest) -> int:
    """Train or submit what is left of these seeds, and report on all; return the exit code."""
    study, launcher = request.study, request.launcher
    everything = trials(study, request.words)
    runs = [(trial, trial.run) for trial in everything if trial.recipe.seed in request.seeds]
    todo = [trial for trial, run in runs if not ended(run)]
    failed = {
        str(trial): run.state for trial, run in runs if run and ended(run) and not run.finished
    }
    print(f"{study.name}: {len(runs)} trials, {len(todo)} to train", flush=True)
    signals = StopSignals()
    if launcher.submits:
        failed |= submit(launcher, todo, signals)
        why = f"{launcher.name} has submitted the rest; the same command, later, ends the study"
    else:
        work = Work(launcher, todo, signals)
        work.train(request.jobs)
        failed |= work.failed
        why = "stopped; the same command goes on"
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    if not signals.count:
        write_report(study, request.words, everything)
    if any(str(trial) not in failed and not ended(trial.run) for trial in todo):
        print(why)
        return Preempted.exit_code
    return 1 if failed else 0


def command(argv: Sequence[str]) -> int:
    """Do what the words ask for; returns the exit code, which is 0 once every trial is finished."""
    request = StudyParser(__doc__ or "").read(argv)
    if request.prints:
        everything = trials(request.study, request.words)
        show(request.launcher, [each for each in everything if each.recipe.seed in request.seeds])
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
    return run(request)


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    return run_alone(lambda: command(argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
