"""The trials that a cluster trains: each is put into its queue once."""

from collections.abc import Sequence

from lsgd.errors import Refused
from lsgd.trials.launch import TrialLauncher
from lsgd.trials.queue import submit_one
from lsgd.trials.trial import Trial


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
