"""The GPUs of runs that a study or a search trains at the same time."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from helpers.composed import compose_recipe

from lsgd import planned
from lsgd.planned import PlannedRun, RunLauncher, attempt_run, gpus_of_slot
from lsgd.supervise.verdict import ExitSummary


def test_concurrent_runs_take_other_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes each: GPUs 0 and 1, 2 and 3, 4 and 5; the first ones are taken again later."""
    monkeypatch.chdir(tmp_path)
    recipe = compose_recipe("+recipe=digits")
    together, seen = Barrier(3, timeout=60), []

    def run_job(*_: object, environment: Mapping[str, str], **__: Any) -> ExitSummary:
        together.wait()
        seen.append(environment.get("LSGD_FIRST_GPU", "0"))
        return ExitSummary(0, "done")

    monkeypatch.setattr(planned, "run_job", run_job)
    launcher = RunLauncher("local", {"--np": "2"})
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            for seed in range(3):
                trial = PlannedRun(replace(recipe, seed=seed), [])
                pool.submit(attempt_run, launcher, trial, [], lambda what: None)
        assert sorted(seen) == ["0", "2", "4"]
        seen.clear()


@pytest.mark.parametrize(
    "launcher",
    [
        RunLauncher("slurm", {"--nodes": "2"}),
        RunLauncher("mpirun", {"--hosts": "a:1,b:1", "--np": "2"}),
    ],
)
def test_a_queue_and_other_machines_choose_gpus_themselves(launcher: RunLauncher) -> None:
    assert gpus_of_slot(launcher, 3) == {}
