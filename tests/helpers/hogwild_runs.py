"""Runs of processes that share one model, all made by one launch.

    torchrun --nproc-per-node 2 tests/helpers/hogwild_runs.py OUT

OUT/ends.json has how each ended on each process, OUT/tickets-NAME-RANK.json the tickets that it has
given in a run, and OUT/lost.json what the other sees of a process that is killed in the last one.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.joined_run import train_joined
from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.errors import PeerLost
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.hogwild import Hogwild
from lsgd.workloads.images import Images

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
    return config.load_recipe([*WORDS, *words])


class Noted(Hogwild):
    """The strategy, which notes the tickets that it has given as (epoch, ticket)."""

    given_tickets: ClassVar[list[tuple[int, int]]]

    def give(self, task: Any) -> None:
        super().give(task)
        (each,) = task.passes
        self.given_tickets.append((each.epoch, each.step))


class Poisoned(Images):
    """The workload, in whose second epoch the loss of an example is no number."""

    def loss(self, model: Any, batch: Any, each: Any) -> Any:
        loss, counts = super().loss(model, batch, each)
        return (loss * torch.nan if each.epoch == 1 and 5 in each.examples else loss), counts


def noted(*, signal_: signal.Signals | None = None) -> type[Noted]:
    """The strategy, on a process that may get a signal in the fifth batch of the second epoch."""

    class NotedHere(Noted):
        given_tickets: ClassVar[list[tuple[int, int]]] = []

        def read(self, task: Any, *, leave: bool) -> None:
            own = [epoch for epoch, _ in self.given_tickets if epoch == 1]
            if signal_ and len(own) == 4:
                os.kill(os.getpid(), signal_)
            super().read(task, leave=leave)

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
        put["lsgd.workloads.images.Images"] = Poisoned
    made = replace(recipe(*(words or SHORT)), run_dir=str(out / name))
    end = train_joined(comm, made, put, out / begin_with if begin_with else None)
    (out / f"tickets-{name}-{comm.rank}.json").write_text(json.dumps(kind.given_tickets))
    return end


def lose_a_process(comm: Comm, out: Path) -> None:
    """The last process is killed in a step, and the other writes what it has seen of it."""
    # Or the launcher would end the other before it has said anything.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        run(comm, out, "killed", signal_=signal.SIGKILL)
    except PeerLost as lost:
        (out / "lost.json").write_text(json.dumps(str(lost)))
        raise


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        ends = {"learned": run(comm, out, "learned", *LEARNED)}
        ends["whole"] = run(comm, out, "whole")
        ends["left"] = run(comm, out, "left", signal_=signal.SIGTERM)
        ends["went on"] = run(comm, out, "went on", begin_with="left")
        ends["no number"] = run(comm, out, "no number", poison=True)
        ends_by_process = comm.gather_objects(ends)
        if comm.rank == 0:
            (out / "ends.json").write_text(json.dumps(ends_by_process))
        lose_a_process(comm, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
