"""One attempt to train a planned run: the launcher and all processes it starts, until they exit."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from lsgd.errors import NotSavedError, UsageError, converting_disk_full
from lsgd.planned.launch import RunLauncher
from lsgd.planned.planned_run import PlannedRun, has_ended
from lsgd.sanitizing import sanitize
from lsgd.supervise.logbook import open_logbook
from lsgd.supervise.start import run_job
from lsgd.supervise.verdict import ExitSummary


def attempt_run(
    launcher: RunLauncher,
    trial: PlannedRun,
    received_signals: Sequence[int],
    log_line: Callable[[str], None],
) -> ExitSummary | None:
    """Start or resume a planned run; return how its job exited, or None if it had ended already.

    A signal handler appends stop signals to `received_signals`. The output goes to the run's log.
    Raises SupervisorLockedError if another process trains the run now, UsageError and OSError if it
    cannot be started, and NotSavedError if a disk is full, which does not mean that the run has
    failed.
    """
    with converting_disk_full(trial.log_path):
        trial.log_path.parent.mkdir(parents=True, exist_ok=True)
        ending = _attempt(launcher, trial, received_signals, log_line)
    if ending and ending.code == NotSavedError.exit_code:
        raise NotSavedError(
            f"{trial}: {failure_reason(trial, ending)}; rerun the same command to resume"
        )
    return ending


def _attempt(
    launcher: RunLauncher, trial: PlannedRun, signals: Sequence[int], say: Callable[[str], None]
) -> ExitSummary | None:
    with (
        trial.log_path.open("a", encoding="utf-8") as output,
        open_logbook(trial.folder, screen=output, patience=0) as logbook,
    ):
        run = trial.saved_run
        if run and has_ended(run):
            say(f"another process has trained it: {run.state}")
            return None
        if job := trial.active_job:
            raise UsageError(f"{job} is to train it; wait for that or cancel it")
        command = launcher.command(trial)
        begins = f"resumes after epoch {run.epoch}" if run and run.epoch else "starts"
        processes, _ = launcher.fit_processes(trial.recipe.most_processes)
        say(f"{begins}, processes: {processes}")
        logbook.log_event("start", shlex.join(command), command=command)
        ending = run_job(command, logbook, signals, output=output)
        logbook.log_event("end", ending.cause, code=ending.code)
        return ending


def failure_reason(trial: PlannedRun, ending: ExitSummary) -> str:
    """Return why a job exited before its run was finished: exit code, cause and last log line."""
    return f"exit code {ending.code}, {ending.cause}; {last_log_line(trial.log_path)}"


def last_log_line(log: Path) -> str:
    """Return a log file's path with its last line that the supervisor did not write, as text."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The supervisor's own line repeats the exit code and the cause.
    lines = [line for line in lines if line.strip() and " supervise: " not in line]
    # Launchers and libraries write to the log too, so the line may hold control characters.
    return sanitize(f"{log} ends with: {lines[-1].strip()}") if lines else f"nothing is in {log}"
