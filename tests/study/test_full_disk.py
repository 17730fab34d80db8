"""Trials that fail, and on a full disk, of which none is said to have failed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.composed import compose_recipe

from lsgd import planned as module
from lsgd.errors import NotSavedError
from lsgd.planned import PlannedRun, RunLauncher, attempt_run
from lsgd.study import run_queue
from lsgd.study.run_queue import RunQueue
from lsgd.supervise.verdict import ExitSummary

LAUNCHER = RunLauncher("local", {"--np": "1"})


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedRun:
    monkeypatch.chdir(tmp_path)
    return PlannedRun(compose_recipe("+recipe=digits"), [])


def ends(monkeypatch: pytest.MonkeyPatch, ending: ExitSummary) -> None:
    monkeypatch.setattr(module, "run_job", lambda *_, **__: ending)


def test_the_reason_of_a_failure_is_given_once(trial: PlannedRun) -> None:
    """The supervisor has it from the process, whose log ends with the same sentence."""
    trial.log_path.parent.mkdir(parents=True)
    trial.log_path.write_text("lsgd: no index\n10:00:00 supervise: process 0 ended\n")
    told = module.failure_reason(
        trial, ExitSummary(2, "process 0 reported a usage error: no index")
    )
    assert told == f"exit code 2, process 0 reported a usage error: no index; see {trial.log_path}"
    killed = module.failure_reason(trial, ExitSummary(137, "process 0 was killed"))
    assert (
        killed == f"exit code 137, process 0 was killed; {trial.log_path} ends with: lsgd: no index"
    )


def test_a_run_that_could_not_save(trial: PlannedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    ends(monkeypatch, ExitSummary(6, "process 0 could not save"))
    with pytest.raises(
        NotSavedError, match="digits, seed 0: exit code 6, process 0 could not save"
    ):
        attempt_run(LAUNCHER, trial, [], lambda what: None)


def test_a_log_that_could_not_be_written(
    trial: PlannedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.log_path.parent.mkdir(parents=True)
    trial.log_path.symlink_to("/dev/full")
    ends(monkeypatch, ExitSummary(0, "done"))
    with pytest.raises(
        NotSavedError, match=r"\.log could not be written \(No space left on device\)"
    ):
        attempt_run(LAUNCHER, trial, [], lambda what: None)


def test_it_ends_the_study_and_fails_no_trial(
    trial: PlannedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def full(
        _: RunLauncher, trial: PlannedRun, __: Sequence[int], ___: Callable[..., None]
    ) -> None:
        tried.append(trial)
        raise NotSavedError("the disk is full")

    monkeypatch.setattr(run_queue, "attempt_run", full)
    work = RunQueue(LAUNCHER, [trial] * 5, [])
    with pytest.raises(NotSavedError):
        work.train(1)
    assert (len(tried), work.failed) == (1, {})
