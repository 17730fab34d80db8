"""The trials that a cluster trains: each is put into its queue once."""

import fcntl
import subprocess
from collections.abc import Sequence

from lsgd.errors import Refused
from lsgd.study.launch import TrialLauncher
from lsgd.study.trials import Trial


def submit(
    launcher: TrialLauncher, todo: Sequence[Trial], signals: Sequence[int]
) -> dict[str, str]:
    """Put those that are not queued yet into the queue; return what was refused, and why."""
    failed = {}
    for number, trial in enumerate(todo, 1):
        if signals:
            break
        try:
            outcome = submit_one(launcher, trial)
        except (Refused, OSError) as error:
            outcome = failed[str(trial)] = str(error)
        print(f"{number} of {len(todo)}  {trial}: {outcome}", flush=True)
    return failed


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
