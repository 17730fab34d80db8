"""Local steps on real processes: the run of one process, killed and resumed within a round too.

tests/helpers/local_runs.py makes all runs in one launch.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from helpers import local_runs
from helpers.differences import largest_difference
from helpers.launching import launch
from helpers.local_runs import KILLED, LEFT, LOST, TOLD
from helpers.undisturbed import rows, same_rows, saved

from lsgd.comm.single import SingleComm

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]
PROCESSES = 3


@pytest.fixture(scope="module")
def alone(folder: Path):
    """The folder of a run that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        run = folder / "alone" / name
        told = (TOLD, local_runs.signal.SIGTERM) if name == "left" else None
        local_runs.run(SingleComm(), run, LEFT if name == "left" else name, signalled=told)
        return run

    return made


@pytest.fixture(scope="module")
def together(folder: Path, alone) -> Path:
    """The folder of all runs of several processes."""
    alone("left")
    (out := folder / "together").mkdir()
    done = launch("forked", PROCESSES, local_runs.__file__, str(out))
    # The launcher says so of the process that is killed when all else is done.
    assert "SIGKILL" in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def ends(out: Path, name: str) -> set[str]:
    """How a run of a job ended on its processes."""
    return {each[name] for each in json.loads((out / "ends.json").read_text())}


def assert_the_same_run(one: Path, other: Path) -> None:
    """Every row once; and the last state, with the momentum and the copies of all workers."""
    for kind in ("train", "epoch"):
        same_rows(rows(one, kind), rows(other, kind))
    ours, theirs = saved(one), saved(other)
    assert (ours.step, ours.order, ours.lr) == (theirs.step, theirs.order, theirs.lr)
    assert largest_difference(ours.model, theirs.model) < 1e-10
    assert largest_difference(ours.optimizer, theirs.optimizer) < 1e-10


@pytest.mark.parametrize("rule", ["nesterov", "elastic"])
def test_a_run_through_the_page(alone, together, rule) -> None:
    assert ends(together, rule) == {""}
    assert_the_same_run(together / rule, alone(rule))


def test_a_signal_reaches_all_and_one_goes_on(alone, together, tmp_path) -> None:
    """It is the last process that is told; all save after the same step, within a round."""
    left = together / "left"
    (end,) = ends(together, "left")
    assert end.startswith(f"Preempted: told to leave by a signal: saved after step {TOLD + 3}")
    assert saved(left).optimizer["workers"][0]["copy"]
    local_runs.run(SingleComm(), tmp_path / "on", LEFT, begin_with=left)
    assert_the_same_run(tmp_path / "on", alone(LEFT))


def test_what_one_process_has_left_is_taken_over(alone, together) -> None:
    assert saved(alone("left")).step == TOLD + 3
    assert_the_same_run(together / "taken over", alone(LEFT))


def test_a_process_that_is_killed_is_missed_and_one_goes_on(alone, together, tmp_path) -> None:
    """From what was saved within a round, with the copies of the workers that were lost."""
    paths = sorted(together.glob("lost-*.json"))
    assert len(paths) == PROCESSES - 1
    for path in paths:
        assert "another process has left the job" in json.loads(path.read_text())
    killed = together / "killed"
    before = saved(killed)
    assert before.step == 5 < LOST
    assert all(worker["copy"] for worker in before.optimizer["workers"])
    words = ("checkpoint_steps=5",)
    assert local_runs.run(SingleComm(), tmp_path / "on", KILLED, *words, begin_with=killed) == ""
    assert_the_same_run(tmp_path / "on", alone(KILLED))
