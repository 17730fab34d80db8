"""Runs in which rows of an embedding travel, as tests and the jobs of server_runs.py make them."""

from dataclasses import replace
from functools import cache

import torch

from helpers.server_runs import ALLREDUCE, distance, make_steps
from lsgd import config
from lsgd.comm import Comm
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe, StrategySettings
from lsgd.run.checkpoint import Checkpoint

PLAIN = [
    "precision=float64", "device=cpu", "inputs=synthetic", "workers=4", "worker_batch=2",
    "workers_per_pass=2", "epochs=3", "optim=sgd", "optim.momentum=0", "optim.nesterov=false",
    "optim.weight_decay=0", "optim.clip_norm=0.1", "model.embedding=6", "model.width=5",
    "schedule.reference_batch=8", "schedule.reference_lr=0.3", "schedule.milestones=[]",
]  # fmt: skip
# 7 steps an epoch, the last of 2 + 2 + 2 + 0 sentences or trees.
SENTENCES = [
    "data.train_examples=54", "data.val_examples=9", "data.test_examples=0", "data.words=40",
]  # fmt: skip
RUNS = {
    "language": [
        "+recipe=ptb_small", "data.train_examples=501", "data.val_examples=57",
        "data.test_examples=0", "data.classes=40", "data.window=6",
    ],
    "tagging": ["+recipe=conll_bilstm_crf", *SENTENCES],
    "trees": ["+recipe=sst_treelstm", *SENTENCES],
}  # fmt: skip
"""The words of each run; all of them clip every gradient."""
STEPS, CUT = 14, 8
"""The steps of a run that is compared, and those after which another goes on with it."""


def rows_by(
    servers: int = 1, topology: str = "central", placement: str = "greedy"
) -> StrategySettings:
    """The settings of synchronous servers to which rows travel."""
    return StrategySettings(
        "sync", servers=servers, topology=topology, placement=placement, sparse_rows=True
    )


CASES = {
    "1 central": rows_by(),
    "2 central": rows_by(2, placement="round_robin"),
    "3 central": rows_by(3, placement="hash"),
    "2 colocated": rows_by(2, "colocated", "hash"),
    "3 colocated": rows_by(3, "colocated"),
}
"""Servers in several numbers and places."""


@cache
def recipe(name: str, *words: str) -> Recipe:
    """The recipe of a run; kept, since reading takes long and is not for threads."""
    return config.load_recipe([*RUNS[name], *PLAIN, *words])


def make_learner(
    comm: Comm, name: str, strategy: StrategySettings, *words: str, kind: type = Learner
) -> Learner:
    """A learner of this run."""
    return kind(replace(recipe(name, *words), strategy=strategy), comm, torch.device("cpu"))


@cache
def by_allreduce(name: str, until: int = STEPS) -> Checkpoint:
    """What one process has after so many steps by all-reduce."""
    return make_steps(make_learner(SingleComm(), name, ALLREDUCE), until)


def compared(comm: Comm, name: str, strategy: StrategySettings, *words: str) -> float:
    """The distance of a run of this job from all-reduce, the largest on any of its processes."""
    learner = make_learner(comm, name, strategy, *words)
    saved = make_steps(learner, STEPS)
    # Each process has the whole model, not only the one that saves it.
    own = replace(saved, model=learner.model.state_dict())
    return max(comm.gather_objects(distance(own, by_allreduce(name))))


def resumed(comm: Comm, name: str, strategy: StrategySettings) -> dict[str, float]:
    """The distances from all-reduce of runs that change to rows on their way, and from them."""
    dense = replace(strategy, sparse_rows=False)
    ways = {"rows after dense": (dense, strategy), "all-reduce after rows": (strategy, ALLREDUCE)}
    distances = {}
    for way, (first, second) in ways.items():
        saved = make_steps(make_learner(comm, name, first), CUT)
        learner = make_learner(comm, name, second)
        learner.restore(saved)
        distances[way] = distance(make_steps(learner, STEPS), by_allreduce(name))
    return distances


def differences(comm: Comm) -> dict[str, float]:
    """How far some runs of this job are from all-reduce, by what they are."""
    return {
        "language": compared(comm, "language", rows_by(3, "colocated")),
        "tagging": compared(comm, "tagging", rows_by(2)),
        **resumed(comm, "tagging", rows_by(2)),
    }
