"""Runs in virtual time on real processes: the bits, and the rows, of one process.

tests/helpers/replay_runs.py makes all runs of a job in one launch. In tests/strategy/test_replay.py
threads play 2 and 4 processes.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import replay_runs
from helpers.launching import launch
from helpers.replay_runs import KINDS, LEFT
from helpers.undisturbed import rows, saved

from lsgd.comm.single import SingleComm

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]


@pytest.fixture(scope="module")
def alone(folder: Path):
    """The folder of a run that one process makes, when it is first asked for."""

    @cache
    def made(name: str) -> Path:
        run = folder / "alone" / name
        kind = LEFT if name == "left" else name
        replay_runs.run(SingleComm(), run, kind, told=name == "left")
        return run

    return made


@pytest.fixture(scope="module")
def together(folder: Path, alone):
    """The folder of all runs of so many processes."""

    @cache
    def made(processes: int) -> Path:
        alone("left")
        (out := folder / str(processes)).mkdir()
        done = launch("forked", processes, replay_runs.__file__, str(out))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return out

    return made


def assert_the_same_bits(one: Path, other: Path) -> None:
    """Rows but for the speed, weights, momentum and statistics."""
    for kind in ("train", "epoch"):
        ours, theirs = (
            [
                {k: v for k, v in row.items() if k not in ("images_per_second", "data_wait")}
                for row in rows(folder, kind)
            ]
            for folder in (one, other)
        )
        # Sums of losses over processes; all else is exact.
        for row, same in zip(ours, theirs, strict=True):
            for key in row:
                assert row[key] == (
                    pytest.approx(same[key], rel=1e-12) if key.endswith("loss") else same[key]
                ), key
    ours, theirs = saved(one), saved(other)
    assert (ours.step, ours.order, ours.lr) == (theirs.step, theirs.order, theirs.lr)
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(ours.model, theirs.model, **exact)
    torch.testing.assert_close(ours.optimizer, theirs.optimizer, **exact)
    shares = [each.parts["batchnorm"]["shares"].sum(0) for each in (ours, theirs)]
    torch.testing.assert_close(*shares, **exact)


@pytest.mark.parametrize("processes", [3])
class TestTogether:
    """Every test reads other runs of the same launch."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same_bits(self, alone, together, processes, kind) -> None:
        assert_the_same_bits(together(processes) / kind, alone(kind))

    def test_a_signal_reaches_all_and_one_goes_on(
        self, alone, together, processes, tmp_path
    ) -> None:
        left = together(processes) / "left"
        ends = json.loads((left.parent / "ends.json").read_text())
        (end,) = {each["left"] for each in ends}
        assert end.startswith("Preempted: told to leave by a signal: saved after step ")
        replay_runs.run(SingleComm(), tmp_path / "on", LEFT, begin_with=left)
        assert_the_same_bits(tmp_path / "on", alone(LEFT))

    def test_what_one_process_has_left_is_taken_over(self, alone, together, processes) -> None:
        assert_the_same_bits(together(processes) / "taken over", alone(LEFT))

    def test_what_is_no_number_on_one_process_stops_all(self, together, processes) -> None:
        ends = json.loads((together(processes) / "ends.json").read_text())
        (end,) = {each["no number"] for each in ends}
        assert end.startswith("Diverged: the loss or a gradient of step ")
