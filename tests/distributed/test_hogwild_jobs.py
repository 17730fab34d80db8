"""Hogwild on real processes: every batch once, told to leave, gone on with, diverged and killed.

tests/helpers/hogwild_runs.py makes all runs in one launch.
"""

import json
import os
import re
from pathlib import Path

import pytest
from helpers import hogwild_runs
from helpers.hogwild_runs import PROCESSES, SHORT, recipe
from helpers.launching import launch
from helpers.undisturbed import rows, saved

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]


@pytest.fixture(scope="module")
def out(folder: Path) -> Path:
    """The folder of all runs of one launch."""
    (made := folder / "hogwild").mkdir()
    done = launch("forked", PROCESSES, hogwild_runs.__file__, str(made))
    # The launcher says so of the process that is killed when all else is done.
    assert "SIGKILL" in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    return made


def ends(out: Path, name: str) -> set[str]:
    return {each[name] for each in json.loads((out / "ends.json").read_text())}


def tickets(out: Path, *names: str) -> list[tuple[int, int]]:
    """The tickets that all processes have given in these runs, sorted."""
    paths = [path for name in names for path in out.glob(f"tickets-{name}-*.json")]
    assert len(paths) == PROCESSES * len(names)
    return sorted(tuple(each) for path in paths for each in json.loads(path.read_text()))


def everything(*, epochs: int = 3) -> list[tuple[int, int]]:
    return [(epoch, ticket) for epoch in range(epochs) for ticket in range(recipe(*SHORT).tickets)]


def test_two_processes_learn_one_model(out: Path) -> None:
    """Chance is an error of 90 %."""
    assert ends(out, "learned") == {""}
    assert rows(out / "learned", "epoch")[-1]["val_top1_error"] < 40


def test_every_batch_once(out: Path) -> None:
    assert ends(out, "whole") == {""}
    assert tickets(out, "whole") == everything()
    epochs = rows(out / "whole", "epoch")
    assert [row["step"] for row in epochs] == [40, 80, 120]
    assert all(row["order"] == "not recorded: two runs differ" for row in epochs)
    assert len({*epochs[-1]["pids"].split()}) == PROCESSES
    steps = [row["step"] for row in rows(out / "whole", "train")]
    assert steps == sorted(set(steps))
    assert saved(out / "whole").tally["counts"][0] == 158


def test_a_signal_ends_it_for_all_and_the_rest_is_made_later(out: Path) -> None:
    """It is the last process that is told; each goes on with those of its batches that are left."""
    (end,) = ends(out, "left")
    step = saved(out / "left").step
    assert end.startswith(f"Preempted: told to leave by a signal: saved after step {step},")
    assert 40 < step < 80
    assert sum(saved(out / "left").optimizer["given"].tolist()) == step - 40
    assert ends(out, "went on") == {""}
    assert tickets(out, "left", "went on") == everything()
    assert saved(out / "went on").step == 120
    assert saved(out / "went on").tally["counts"][0] == 158
    assert len(rows(out / "went on", "epoch")) == 3


def test_what_is_not_finite_ends_it_on_all_processes(out: Path) -> None:
    (end,) = ends(out, "no number")
    found = re.match(r"Diverged: the loss or a gradient of step (\d+) is not finite", end)
    assert found
    assert 40 <= int(found[1]) < 80
    assert saved(out / "no number").step == 40


def test_a_killed_process_is_missed_at_once_and_leaves_nothing(out: Path) -> None:
    lost = json.loads((out / "lost.json").read_text())
    assert lost.startswith("process 1 has ended, and the others cannot go on without it;")
    assert saved(out / "killed").step == 40
    assert not [name for name in os.listdir("/dev/shm") if "lsgd" in name]
