"""How a trial is put into the queue of a cluster: once."""

import fcntl
import subprocess

from lsgd.errors import Refused
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.trial import Trial


def submit_one(launcher: TrialLauncher, trial: Trial) -> str:
    """What has become of it, in words; raises Refused and OSError if it is not in the queue."""
    trial.job.parent.mkdir(parents=True, exist_ok=True)
    with trial.job.open("a", encoding="utf-8") as answer:
        # The launcher inherits the lock, and writes by itself what it has submitted.
        fcntl.flock(answer, fcntl.LOCK_EX)
        if job := trial.queued:
            return f"{job} is queued or running already"
        answer.truncate(0)
        command = launcher.command(trial)
        done = subprocess.run(command, stdout=answer, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise Refused(f"exit code {done.returncode}: {done.stderr.strip()}")
        processes, _ = launcher.fitted(trial.recipe.most_processes)
        return f"{trial.job.read_text(encoding='utf-8').strip()}, processes: {processes}"
