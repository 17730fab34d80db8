"""The submission of a planned run to the queue of a cluster."""

import subprocess

from lsgd.errors import UsageError, converting_disk_full
from lsgd.files import lock
from lsgd.planned.launch import RunLauncher
from lsgd.planned.planned_run import PlannedRun


def submit_run(launcher: RunLauncher, trial: PlannedRun) -> str:
    """Submit a planned run to a cluster's queue unless its job is active; return the outcome.

    Raises UsageError and OSError if the submission fails, and NotSavedError if a full disk prevents
    saving the job's number.
    """
    with converting_disk_full(trial.job_path):
        trial.job_path.parent.mkdir(parents=True, exist_ok=True)
    with converting_disk_full(trial.job_path), trial.job_path.open("a", encoding="utf-8") as answer:
        # The launcher inherits the locked file and writes the job's number there: the number is
        # saved even if this process is killed.
        lock(answer, wait=True)
        if job := trial.active_job:
            return f"{job} is already queued or running"
        answer.truncate(0)
        command = launcher.command(trial)
        done = subprocess.run(
            command, stdout=answer, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        if done.returncode:
            raise UsageError(f"exit code {done.returncode}: {done.stderr.strip()}")
        processes, _ = launcher.fit_processes(trial.recipe.most_processes)
        return f"{trial.job_path.read_text('utf-8', 'replace').strip()}, processes: {processes}"
