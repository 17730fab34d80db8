"""Hogwild on real processes: every batch once, told to leave, gone on with, diverged and killed.

One launch makes all runs. OUT/tickets-NAME-RANK.json has the tickets that a process has given in a
run, and OUT/lost.json what the other sees of a process that is killed in the last one.
"""

import json
import os
import re
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from helpers.composed import compose_recipe
from helpers.joined_run import NaNLossImages, early_ends, train_with_comm, write_ends
from helpers.launching import launch
from helpers.reference_run import newest_checkpoint, rows

from lsgd.comm import Comm, joined
from lsgd.errors import PeerLostError
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.hogwild import Hogwild

pytestmark = [pytest.mark.distributed, pytest.mark.side_by_side]
PROCESSES = 2
WORDS = [
    "+recipe=digits", f"workers={PROCESSES}", "device=cpu", "model.last_gamma=1.0", "log_steps=4",
    "schedule.milestones=[]", "schedule.warmup=none", "workers_per_pass=1",
    "strategy=hogwild", "optim.momentum=0", "optim.nesterov=false",
]  # fmt: skip
# 40 batches of 4, of which the last has 2.
SHORT = [
    "worker_batch=4", "data.train_examples=158", "tail=keep", "epochs=3", "inputs=synthetic",
    "data.val_examples=4",
]  # fmt: skip
LEARNED = [
    "worker_batch=32", "schedule.reference_batch=32", "schedule.reference_lr=0.1", "epochs=2",
]  # fmt: skip
"""The words of a run of real digits, 45 updates an epoch at lr 0.1."""


@cache
def recipe(*words: str) -> Recipe:
    """The small recipe with these words; kept, since reading takes long."""
    return compose_recipe(*WORDS, *words)


class Noted(Hogwild):
    """The strategy, which notes the tickets that it has given as (epoch, ticket)."""

    given_tickets: ClassVar[list[tuple[int, int]]]

    def step(self, task: Any) -> None:
        super().step(task)
        (each,) = task.micro_batches
        self.given_tickets.append((each.epoch, each.step))


def noted(*, signal_: signal.Signals | None = None) -> type[Noted]:
    """The strategy, on a process that may get a signal in the fifth batch of the second epoch."""

    class NotedHere(Noted):
        given_tickets: ClassVar[list[tuple[int, int]]] = []

        def begin(self, task: Any, *, stop_requested: bool) -> None:
            own = [epoch for epoch, _ in self.given_tickets if epoch == 1]
            if signal_ and len(own) == 4:
                os.kill(os.getpid(), signal_)
            super().begin(task, stop_requested=stop_requested)

    return NotedHere


def run(
    comm: Comm, out: Path, name: str, *words: str, begin_with: str | None = None,
    signal_: signal.Signals | None = None, poison: bool = False,
) -> str:  # fmt: skip
    """Train in OUT/NAME, or go on there from another run's state; how it ended, if early.

    The last process may get a signal, or the loss of one example is no number.
    """
    kind = noted(signal_=signal_ if comm.rank == comm.world_size - 1 else None)
    put: dict[str, type] = {"lsgd.strategy.hogwild.Hogwild": kind}
    if poison:
        put["lsgd.workloads.images.ImageClassification"] = NaNLossImages
    made = replace(recipe(*(words or SHORT)), run_dir=str(out / name))
    end = train_with_comm(comm, made, put, out / begin_with if begin_with else None)
    (out / f"tickets-{name}-{comm.rank}.json").write_text(json.dumps(kind.given_tickets))
    return end


def lose_a_process(comm: Comm, out: Path) -> None:
    """The last process is killed in a step, and the other writes what it has seen of it."""
    # Or the launcher would end the other before it has said anything.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        run(comm, out, "killed", signal_=signal.SIGKILL)
    except PeerLostError as lost:
        (out / "lost.json").write_text(json.dumps(str(lost)))
        raise


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=600), torch.device("cpu")) as comm:
        ends = {"learned": run(comm, out, "learned", *LEARNED)}
        ends["whole"] = run(comm, out, "whole")
        ends["left"] = run(comm, out, "left", signal_=signal.SIGTERM)
        ends["went on"] = run(comm, out, "went on", begin_with="left")
        ends["no number"] = run(comm, out, "no number", poison=True)
        write_ends(comm, out, ends)
        lose_a_process(comm, out)


@pytest.fixture(scope="module")
def out(folder: Path) -> Path:
    """The folder of all runs of one launch."""
    (made := folder / "hogwild").mkdir()
    done = launch("forked", PROCESSES, __file__, str(made))
    # The launcher says so of the process that is killed when all else is done.
    assert "SIGKILL" in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    return made


def tickets(out: Path, *names: str) -> list[tuple[int, int]]:
    """The tickets that all processes have given in these runs, sorted."""
    paths = [path for name in names for path in out.glob(f"tickets-{name}-*.json")]
    assert len(paths) == PROCESSES * len(names)
    return sorted(tuple(each) for path in paths for each in json.loads(path.read_text()))


def everything(*, epochs: int = 3) -> list[tuple[int, int]]:
    return [(epoch, ticket) for epoch in range(epochs) for ticket in range(recipe(*SHORT).tickets)]


def test_two_processes_learn_one_model(out: Path) -> None:
    """Chance is an error of 90 %."""
    assert early_ends(out, "learned") == {""}
    assert rows(out / "learned", "epoch")[-1]["val_top1_error"] < 40


def test_every_batch_once(out: Path) -> None:
    assert early_ends(out, "whole") == {""}
    assert tickets(out, "whole") == everything()
    epochs = rows(out / "whole", "epoch")
    assert [row["step"] for row in epochs] == [40, 80, 120]
    assert all(row["order"] == "not recorded: two runs differ" for row in epochs)
    assert len({*epochs[-1]["pids"].split()}) == PROCESSES
    steps = [row["step"] for row in rows(out / "whole", "train")]
    assert steps == sorted(set(steps))
    assert newest_checkpoint(out / "whole").tally["counts"][0] == 158


def test_a_signal_ends_it_for_all_and_the_rest_is_made_later(out: Path) -> None:
    """It is the last process that is told; each goes on with those of its batches that are left."""
    (end,) = early_ends(out, "left")
    step = newest_checkpoint(out / "left").step
    assert end.startswith(f"PreemptedError: preempted by a signal: saved after step {step};")
    assert 40 < step < 80
    assert sum(newest_checkpoint(out / "left").optimizer["given"].tolist()) == step - 40
    assert early_ends(out, "went on") == {""}
    assert tickets(out, "left", "went on") == everything()
    assert newest_checkpoint(out / "went on").step == 120
    assert newest_checkpoint(out / "went on").tally["counts"][0] == 158
    assert len(rows(out / "went on", "epoch")) == 3


def test_what_is_not_finite_ends_it_on_all_processes(out: Path) -> None:
    (end,) = early_ends(out, "no number")
    found = re.match(r"DivergedError: the loss or a gradient of step (\d+) is not finite", end)
    assert found
    assert 40 <= int(found[1]) < 80
    assert newest_checkpoint(out / "no number").step == 40


def test_a_killed_process_is_missed_at_once_and_leaves_nothing(out: Path) -> None:
    lost = json.loads((out / "lost.json").read_text())
    assert lost.startswith("process 1 has ended, and the others cannot continue without it;")
    assert newest_checkpoint(out / "killed").step == 40
    assert not [name for name in os.listdir("/dev/shm") if "lsgd" in name]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
