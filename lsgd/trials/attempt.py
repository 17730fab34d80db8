"""One start of a trial by this process: from its launcher to the end of all that it has started."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from lsgd.errors import Refused
from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.start import run_job
from lsgd.supervise.verdict import Ending
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.trial import Trial, ended


def attempt(
    launcher: TrialLauncher, trial: Trial, signals: Sequence[int], say: Callable[[str], None]
) -> Ending | None:
    """Train what is left of the trial; None if another process has trained it meanwhile.

    `signals` are those that ask it to leave, as they come. What is printed goes to the trial's log.
    Raises Taken if another process trains it now, Refused and OSError if it cannot be started.
    """
    trial.log.parent.mkdir(parents=True, exist_ok=True)
    with (
        trial.log.open("a", encoding="utf-8") as output,
        open_logbook(trial.folder, screen=output, patience=0) as logbook,
    ):
        run = trial.run
        if run and ended(run):
            say(f"another process has trained it: {run.state}")
            return None
        if job := trial.queued:
            raise Refused(f"{job} is to train it; wait for that or cancel it")
        command = launcher.command(trial)
        begins = f"goes on after epoch {run.epoch}" if run and run.epoch else "starts"
        processes, _ = launcher.fitted(trial.recipe.most_processes)
        say(f"{begins}, processes: {processes}")
        logbook.say("start", shlex.join(command), command=command)
        ending = run_job(command, logbook, signals, output=output)
        logbook.say("end", ending.cause, code=ending.code)
        return ending


def failure(trial: Trial, ending: Ending) -> str:
    """Why a start that has not trained the trial to its end has ended, in words."""
    return f"exit code {ending.code}, {ending.cause}; {last_line(trial.log)}"


def last_line(log: Path) -> str:
    """The last thing that was said, and where."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The supervisor's own line says what is known already.
    lines = [line for line in lines if line.strip() and " supervise: " not in line]
    return f"{log} ends: {lines[-1].strip()}" if lines else f"nothing is in {log}"
