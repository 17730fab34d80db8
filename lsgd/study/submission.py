"""The submission of a study's runs to the queue of a cluster, once each."""

from collections.abc import Sequence

from lsgd.errors import UsageError
from lsgd.planned.launch import RunLauncher
from lsgd.planned.planned_run import PlannedRun
from lsgd.planned.submission import submit_run


def submit_runs(
    launcher: RunLauncher, todo: Sequence[PlannedRun], signals: Sequence[int]
) -> dict[str, str]:
    """Submit planned runs to the queue of a cluster; return the reasons of failures by run."""
    failed = {}
    for number, trial in enumerate(todo, 1):
        if signals:
            break
        try:
            outcome = submit_run(launcher, trial)
        except (UsageError, OSError) as error:
            outcome = failed[str(trial)] = str(error)
        print(f"{number} of {len(todo)}  {trial}: {outcome}", flush=True)
    return failed
