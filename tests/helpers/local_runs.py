"""Runs with local steps, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/helpers/local_runs.py OUT

One launch makes all of them. OUT/ends.json has how each ended on each process, and
OUT/lost-RANK.json what the others see of a process that is killed in the last one.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.joined_run import train_joined
from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.errors import PeerLost
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.local import Local

# 8 steps an epoch, in rounds of 3, 3 and 2; the last step is of 4 + 4 + 3 + 0 + 0 images.
WORDS = [
    "+recipe=digits", "workers=5", "worker_batch=4", "data.train_examples=151", "tail=keep",
    "precision=float64", "epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "schedule.reference_batch=8", "model.last_gamma=1.0", "inputs=synthetic", "device=cpu",
    "data.val_examples=4", "log_steps=1", "strategy=local", "strategy.local_steps=3",
]  # fmt: skip
MOMENTUM = "strategy.outer_momentum=0.9"
RULES = {
    "mean": [],
    "sgd": ["strategy.outer=sgd", "strategy.outer_lr=0.7", MOMENTUM],
    "nesterov": ["strategy.outer=nesterov", "strategy.outer_lr=0.7", MOMENTUM],
    "elastic": ["strategy.outer=elastic", "strategy.moving_rate=0.15"],
}
"""The words of each outer rule."""
LEFT, KILLED = "sgd", "nesterov"
"""The rules of the runs that are left within a round, and that lose a process."""
TOLD, LOST = 2, 7
"""The steps of the run in which a process is told to leave, and in which one is killed."""


@cache
def recipe(*words: str) -> Recipe:
    """The small recipe with these words; kept, since reading takes long."""
    return config.load_recipe([*WORDS, *words])


def reached(step: int, signal_: signal.Signals) -> type[Local]:
    """The strategy, on a process that gets a signal in a step."""

    class Reached(Local):
        def read(self, task: Any, *, leave: bool) -> None:
            if task.step == step:
                os.kill(os.getpid(), signal_)
            super().read(task, leave=leave)

    return Reached


def run(
    comm: Comm, folder: Path, rule: str, *words: str, begin_with: Path | None = None,
    signalled: tuple[int, signal.Signals] | None = None,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state; how it ended, if early.

    The last process may be told to leave, or killed, in a step.
    """
    put: dict[str, type] = {}
    if signalled and comm.rank == comm.world_size - 1:
        put["lsgd.strategy.local.Local"] = reached(*signalled)
    made = replace(recipe(*RULES[rule], *words), run_dir=str(folder))
    return train_joined(comm, made, put, begin_with)


def lose_a_process(comm: Comm, out: Path) -> None:
    """The last process is killed in a step, and the others write what they have seen of it."""
    # Or the launcher would end the others before they have said anything.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        words = ("checkpoint_steps=5",)
        run(comm, out / "killed", KILLED, *words, signalled=(LOST, signal.SIGKILL))
    except PeerLost as lost:
        (out / f"lost-{comm.rank}.json").write_text(json.dumps(str(lost)))
        raise


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        ends = {rule: run(comm, out / rule, rule) for rule in ("nesterov", "elastic")}
        told = (TOLD, signal.SIGTERM)
        ends["left"] = run(comm, out / "left", LEFT, signalled=told)
        left = out.parent / "alone" / "left"
        ends["taken over"] = run(comm, out / "taken over", LEFT, begin_with=left)
        ends_by_process = comm.gather_objects(ends)
        if comm.rank == 0:
            (out / "ends.json").write_text(json.dumps(ends_by_process))
        lose_a_process(comm, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
