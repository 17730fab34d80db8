"""Runs in virtual time, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/helpers/replay_runs.py OUT

One launch makes all of them; OUT/ends.json has how each ended on each process.
"""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from sketches import jobs

from helpers.joined_run import train_joined
from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.recipe import CommSettings, Recipe
from lsgd.strategy.replay import Replay
from lsgd.workloads.images import Images

# 20 batches of 4, of which the last has 2.
WORDS = [
    "+recipe=digits", "workers=4", "worker_batch=4", "data.train_examples=78", "tail=keep",
    "precision=float64", "epochs=2", "schedule.milestones=[1]", "schedule.warmup_epochs=0.5",
    "schedule.reference_batch=8", "model.last_gamma=1.0", "inputs=synthetic", "device=cpu",
    "data.val_examples=4", "workers_per_pass=1", "log_steps=4",
]  # fmt: skip
# So slow a network, and steps of such times, that every worker is late now and then.
UNEVEN = ["cluster.spread=0.7", "cluster.server_gbits=0.02", "cluster.step=0.03"]
KINDS = {
    "async": ["strategy=async"],
    "async on servers": ["strategy=async", "strategy.servers=3"],
    "async beside workers": [
        "strategy=async", "strategy.servers=3", "strategy.topology=colocated",
        "strategy.placement=round_robin", "cluster.worker_gbits=0.02",
    ],
    "staleness-aware": ["strategy=async", "strategy.staleness_aware=true"],
    "bounded": ["strategy=bounded", "strategy.slack=1", "strategy.servers=2"],
    "backup": ["strategy=backup", "workers=6", "strategy.backup=2", "strategy.servers=2"],
    # 7 pushes of 3 local steps, of which the last has 4 + 2 images.
    "local steps": [
        "strategy=async", "strategy.local_steps=3", "strategy.servers=3",
        "strategy.outer=nesterov", "strategy.outer_lr=0.4", "strategy.outer_momentum=0.5",
    ],
    "bounded local steps": ["strategy=bounded", "strategy.slack=1", "strategy.local_steps=2"],
}  # fmt: skip
"""The words of every kind of order."""


@cache
def recipe(*words: str) -> Recipe:
    """The small recipe with these words; kept, since reading takes long."""
    return config.load_recipe([*WORDS, *words])


def run(
    comm: Comm, folder: Path, kind: str, *, begin_with: Path | None = None, told: bool = False,
    poison: bool = False,
) -> str:  # fmt: skip
    """Train in this folder, or go on there from that one's state; how it ended, if early.

    The last process is told to leave in a step, or the loss of one is no number, on the process
    that computes it.
    """
    put: dict[str, type] = {}
    if told and comm.rank == comm.world_size - 1:
        put["lsgd.strategy.replay.Replay"] = jobs.told_to_leave(Replay)
    if poison:
        put["lsgd.workloads.images.Images"] = jobs.poisoned(Images)
    made = replace(recipe(*KINDS[kind], *UNEVEN), run_dir=str(folder))
    return train_joined(comm, made, put, begin_with)


LEFT, NO_NUMBER = "async beside workers", "bounded"
"""The kinds of the runs that are left, and end since a loss is no number."""


def main(out: Path) -> None:
    """All runs, on every process of a job."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        ends = {kind: run(comm, out / kind, kind) for kind in KINDS}
        ends["left"] = run(comm, out / "left", LEFT, told=True)
        ends["no number"] = run(comm, out / "no number", NO_NUMBER, poison=True)
        left = out.parent / "alone" / "left"
        ends["taken over"] = run(comm, out / "taken over", LEFT, begin_with=left)
        ends_by_process = comm.gather_objects(ends)
        if comm.rank == 0:
            (out / "ends.json").write_text(json.dumps(ends_by_process))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
