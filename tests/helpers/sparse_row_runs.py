"""Runs with parameter servers that exchange only the used rows of an embedding."""

from dataclasses import replace
from functools import cache

import torch

from helpers.composed import compose_recipe
from helpers.differences import distance
from helpers.server_runs import ALLREDUCE, make_steps
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
"""The overrides of each run; every step clips the gradient."""
STEPS, CUT = 14, 8
"""The steps of a compared run, and the step from which another run resumes it."""


def sparse_row_servers(
    servers: int = 1, topology: str = "central", placement: str = "greedy"
) -> StrategySettings:
    """Return the strategy settings of synchronous servers with sparse_rows=True."""
    return StrategySettings(
        "sync", servers=servers, topology=topology, placement=placement, sparse_rows=True
    )


CASES = {
    "1 central": sparse_row_servers(),
    "2 central": sparse_row_servers(2, placement="round_robin"),
    "3 central": sparse_row_servers(3, placement="hash"),
    "2 colocated": sparse_row_servers(2, "colocated", "hash"),
    "3 colocated": sparse_row_servers(3, "colocated"),
}
"""The strategy settings with several numbers, topologies and placements of servers."""


@cache
def recipe(name: str, *words: str) -> Recipe:
    """Return the recipe of a run, cached since composing takes long and is not thread-safe."""
    return compose_recipe(*RUNS[name], *PLAIN, *words)


def make_learner(
    comm: Comm, name: str, strategy: StrategySettings, *words: str, kind: type = Learner
) -> Learner:
    """Return a learner for the run of this name with this strategy."""
    return kind(replace(recipe(name, *words), strategy=strategy), comm, torch.device("cpu"))


@cache
def allreduce_checkpoint(name: str, until: int = STEPS) -> Checkpoint:
    """Return the checkpoint of a single process after `until` steps by all-reduce, cached."""
    return make_steps(make_learner(SingleComm(), name, ALLREDUCE), until)


def difference_from_allreduce(
    comm: Comm, name: str, strategy: StrategySettings, *words: str
) -> float:
    """Train a run on this job; return its largest difference from all-reduce on any process."""
    learner = make_learner(comm, name, strategy, *words)
    saved = make_steps(learner, STEPS)
    # Each process has the whole model, not only the one that saves it.
    own = replace(saved, model=learner.model.state_dict())
    return max(comm.gather_objects(distance(own, allreduce_checkpoint(name))))


def resumed_differences(comm: Comm, name: str, strategy: StrategySettings) -> dict[str, float]:
    """Return the differences from all-reduce of runs that switch to or from sparse rows midway."""
    dense = replace(strategy, sparse_rows=False)
    ways = {"rows after dense": (dense, strategy), "all-reduce after rows": (strategy, ALLREDUCE)}
    distances = {}
    for way, (first, second) in ways.items():
        saved = make_steps(make_learner(comm, name, first), CUT)
        learner = make_learner(comm, name, second)
        learner.restore(saved)
        distances[way] = distance(make_steps(learner, STEPS), allreduce_checkpoint(name))
    return distances
