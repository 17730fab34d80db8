"""Real processes record their order, and what they have computed is made again by it: bit by bit.

tests/helpers/live_runs.py makes all runs of a job in one launch.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers import live_runs
from helpers.launching import launch
from helpers.live_runs import KINDS, LEFT, NO_NUMBER, PROCESSES
from helpers.undisturbed import rows, saved

from lsgd.strategy.recorded import load_orders

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]


@pytest.fixture(scope="module")
def live(folder: Path) -> Path:
    """The folder of all runs of one launch."""
    (out := folder / "live").mkdir()
    done = launch("forked", PROCESSES, live_runs.__file__, str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def assert_the_same_bits(one: Path, other: Path) -> None:
    ours, theirs = saved(one), saved(other)
    assert (ours.step, ours.order, ours.lr) == (theirs.step, theirs.order, theirs.lr)
    exact = {"rtol": 0, "atol": 0}
    torch.testing.assert_close(ours.model, theirs.model, **exact)
    for kind in ("state", "param_groups"):
        torch.testing.assert_close(ours.optimizer[kind], theirs.optimizer[kind], **exact)
    shares = [
        {name: part["shares"].sum(0) for name, part in each.parts.items()}
        for each in (ours, theirs)
    ]
    torch.testing.assert_close(*shares, **exact)
    for row, same in zip(rows(one, "epoch"), rows(other, "epoch"), strict=True):
        for key in row.keys() & same.keys():
            if key.startswith("train_"):  # an evaluation has other passes on other processes
                assert row[key] == pytest.approx(same[key], rel=1e-12), key


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_is_replayed(live: Path, tmp_path: Path, kind: str) -> None:
    assert live_runs.replay(tmp_path / "again", kind, live / kind) == ""
    assert_the_same_bits(live / kind, tmp_path / "again")
    row = rows(live / kind, "epoch")[-1]
    orders = load_orders(live / kind / "orders.npz")
    assert row["order"] == orders.digest
    assert len({*row["pids"].split()}) == PROCESSES
    assert list(saved(live / kind).parts) == ["batchnorm"] * (kind != "without BN")


def test_a_signal_ends_the_order_and_the_run_goes_on(live: Path, tmp_path: Path) -> None:
    ends = json.loads((live / "ends.json").read_text())
    (end,) = {each["left"] for each in ends}
    assert re.match(r"Preempted: told to leave by a signal: saved after step \d\d,", end)
    assert [len(each) for each in load_orders(live / "went on/orders.npz").epochs.values()] == [
        1, 2, 1,
    ]  # fmt: skip
    assert live_runs.replay(tmp_path / "again", LEFT, live / "went on") == ""
    assert_the_same_bits(live / "went on", tmp_path / "again")


def test_what_diverges_diverges_again_at_the_same_step(live: Path, tmp_path: Path) -> None:
    ends = json.loads((live / "ends.json").read_text())
    (end,) = {each["no number"] for each in ends}
    assert end.startswith("Diverged: the loss or a gradient of step ")
    assert (live / "no number" / "orders.npz").stat().st_size < 2000
    again = live_runs.replay(tmp_path / "again", NO_NUMBER, live / "no number", poison=True)
    assert again.partition(" is not finite")[0] == end.partition(" is not finite")[0]


def test_an_order_that_ends_early_says_so(live: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"orders\.npz ends after step \d+, as the run that it is"):
        live_runs.replay(tmp_path / "again", NO_NUMBER, live / "no number")
