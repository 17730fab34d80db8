"""Real processes record their order, and what they have computed is made again by it: bit by bit.

One launch makes all runs.
"""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.joined_run import NaNLossImages, compose_once, early_ends, train_with_comm, write_ends
from helpers.launching import launch
from helpers.reference_run import newest_checkpoint, rows

from lsgd.comm import Comm, joined
from lsgd.comm.single import SingleComm
from lsgd.recipe import CommSettings
from lsgd.strategy.live import LiveStrategy
from lsgd.strategy.recorded import load_orders

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]
# 20 batches of 4, of which the last has 2.
WORDS = [
    "+recipe=digits", "worker_batch=4", "data.train_examples=78", "tail=keep", "epochs=2",
    "schedule.milestones=[1]", "schedule.warmup_epochs=0.5", "schedule.reference_batch=8",
    "model.last_gamma=1.0", "inputs=synthetic", "device=cpu", "data.val_examples=4",
    "workers_per_pass=1", "log_steps=4",
]  # fmt: skip
PROCESSES = 4
KINDS = {
    "async": ["strategy=async", "workers=3"],
    "async on servers": ["strategy=async", "workers=2", "strategy.servers=2", "epochs=3"],
    "async beside workers": [
        "strategy=async", "workers=4", "strategy.servers=2", "strategy.topology=colocated",
        "strategy.placement=round_robin",
    ],
    "without BN": ["strategy=async", "workers=3", "model=lenet5", "data.image_size=28"],
    "staleness-aware": ["strategy=async", "strategy.staleness_aware=true", "workers=3"],
    "clipped": ["strategy=async", "workers=2", "strategy.servers=2", "optim.clip_norm=0.5"],
    "local steps": [
        "strategy=async", "strategy.local_steps=3", "strategy.outer=nesterov",
        "strategy.outer_momentum=0.5", "strategy.outer_lr=0.7", "workers=2", "strategy.servers=2",
    ],
    "bounded": ["strategy=bounded", "strategy.slack=0", "workers=3"],
    "bounded on servers": [
        "strategy=bounded", "strategy.slack=1", "workers=2", "strategy.servers=2",
    ],
    "backup": ["strategy=backup", "workers=3", "strategy.backup=1"],
    "backup on servers": [
        "strategy=backup", "workers=4", "strategy.backup=2", "strategy.servers=3",
        "strategy.topology=colocated",
    ],
}  # fmt: skip
"""The words of every kind of run."""
LEFT, NO_NUMBER = "async on servers", "bounded"
"""The kinds of the runs that are left, in the second of three epochs, and end since a loss is no
number."""


class Told(LiveStrategy):
    """The strategy, on a process that gets a signal in a step."""

    def begin(self, task: Any, *, stop_requested: bool) -> None:
        if task.micro_batches[0].epoch == 1 and self.given == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        super().begin(task, stop_requested=stop_requested)


def run(
    comm: Comm, folder: Path, kind: str, *, begin_with: Path | None = None, told: bool = False,
    poison: bool = False,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state; how it ended, if early.

    The last process with a worker is told to leave in a step, or the loss of one is no number.
    """
    made = compose_once(comm, folder, *WORDS, *KINDS[kind], "strategy.order=live")
    put: dict[str, type] = {}
    if told and comm.rank == made.workers - 1:
        put["lsgd.strategy.live.LiveStrategy"] = Told
    if poison:
        put["lsgd.workloads.images.ImageClassification"] = NaNLossImages
    return train_with_comm(comm, made, put, begin_with)


def replay(folder: Path, kind: str, recorded: Path, *, poison: bool = False) -> str:
    """Make a run again, alone, by the orders that it has recorded."""
    order = f"strategy.order={recorded / 'orders.npz'}"
    made = compose_once(SingleComm(), folder, *WORDS, *KINDS[kind], order)
    put = {"lsgd.workloads.images.ImageClassification": NaNLossImages} if poison else {}
    return train_with_comm(SingleComm(), made, put, None)


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=600), torch.device("cpu")) as comm:
        ends = {kind: run(comm, out / kind, kind) for kind in KINDS}
        ends["left"] = run(comm, out / "left", LEFT, told=True)
        ends["went on"] = run(comm, out / "went on", LEFT, begin_with=out / "left")
        ends["no number"] = run(comm, out / "no number", NO_NUMBER, poison=True)
        write_ends(comm, out, ends)


@pytest.fixture(scope="module")
def live(folder: Path) -> Path:
    """The folder of all runs of one launch."""
    (out := folder / "live").mkdir()
    done = launch("forked", PROCESSES, __file__, str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def assert_the_same_bits(one: Path, other: Path) -> None:
    ours, theirs = newest_checkpoint(one), newest_checkpoint(other)
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
    assert replay(tmp_path / "again", kind, live / kind) == ""
    assert_the_same_bits(live / kind, tmp_path / "again")
    row = rows(live / kind, "epoch")[-1]
    orders = load_orders(live / kind / "orders.npz")
    assert row["order"] == orders.digest
    assert len({*row["pids"].split()}) == PROCESSES
    assert list(newest_checkpoint(live / kind).parts) == ["batchnorm"] * (kind != "without BN")


def test_a_signal_ends_the_order_and_the_run_goes_on(live: Path, tmp_path: Path) -> None:
    (end,) = early_ends(live, "left")
    assert re.match(r"PreemptedError: preempted by a signal: saved after step \d\d;", end)
    assert [len(each) for each in load_orders(live / "went on/orders.npz").epochs.values()] == [
        1, 2, 1,
    ]  # fmt: skip
    assert replay(tmp_path / "again", LEFT, live / "went on") == ""
    assert_the_same_bits(live / "went on", tmp_path / "again")


def test_what_diverges_diverges_again_at_the_same_step(live: Path, tmp_path: Path) -> None:
    (end,) = early_ends(live, "no number")
    assert end.startswith("DivergedError: the loss or a gradient of step ")
    assert (live / "no number" / "orders.npz").stat().st_size < 2000
    again = replay(tmp_path / "again", NO_NUMBER, live / "no number", poison=True)
    assert again.partition(" is not finite")[0] == end.partition(" is not finite")[0]


def test_an_order_that_ends_early_says_so(live: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"orders\.npz ends after step \d+, where the recorded"):
        replay(tmp_path / "again", NO_NUMBER, live / "no number")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
