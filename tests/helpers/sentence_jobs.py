"""The runs of taggers and of trees, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/helpers/sentence_jobs.py OUT

OUT/../corpus has tagged sentences, and OUT/../trees parsed ones. Each run goes through
lsgd.train.train as it is and leaves its folder below OUT; one launch makes all of them, since
starting costs most.
"""

import os
import signal
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers import sentences, trees
from helpers.joined_run import train_joined
from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.recipe import PADDINGS, CommSettings, Recipe
from lsgd.strategy.allreduce import AllReduce

# 7 steps an epoch, the last of 2 + 2 + 2 + 0 examples.
EVERY = [
    "precision=float64", "workers=4", "worker_batch=2", "tail=keep", "epochs=3",
    "model.embedding=6", "model.width=5", "schedule.reference_batch=8", "workers_per_pass=4",
    "val_batch=4", "log_steps=1", "device=cpu",
]  # fmt: skip
TAGGER = [
    "+recipe=conll_bilstm_crf", "model.dropout=0.5", "data.word_dropout=0.2", "optim=sgd",
    "schedule.reference_lr=0.3",
]  # fmt: skip
SOFTMAX = ["model.name=bilstm", "data.order=by_length"]
CHILD_SUM = ["model=childsum"]
RUNS: dict[str, list[str]] = {
    **{padding: [f"padding={padding}"] for padding in PADDINGS},
    "one-per-pass": ["workers_per_pass=1"],
    "two-per-pass": ["workers_per_pass=2", "padding=batch"],
    "softmax": SOFTMAX,
    "softmax-packed": [*SOFTMAX, "padding=packed", "workers_per_pass=1"],
    "adam": ["optim=adam", "schedule.reference_lr=0.01"],
    "left": [],
}
"""The runs of taggers, by the names of their folders, with the words that make them."""
TREES: dict[str, list[str]] = {
    "trees": [],
    "trees-one-per-pass": ["workers_per_pass=1"],
    "trees-recursive": ["batching=recursive", "workers_per_pass=2"],
    "childsum": CHILD_SUM,
    "childsum-recursive": [*CHILD_SUM, "batching=recursive"],
    "left-trees": [],
}
"""The same of trees."""
LEFT = {"left": "bucket", "left-trees": "trees"}
"""The runs in which a process is told to leave, with those that they are equal to in the end."""
TOLD = 8
"""The step of such a run in which a process is told to leave: the second of the second epoch."""


class LeavingEarly(AllReduce):
    """A strategy on a process that gets a signal in a step."""

    def read(self, task: Any, *, leave: bool) -> None:
        if task.step == TOLD:
            os.kill(os.getpid(), signal.SIGTERM)
        super().read(task, leave=leave)


@cache
def recipe(corpus: Path, *words: str) -> Recipe:
    """The tagger of these words for the corpus."""
    return config.load_recipe([*TAGGER, *EVERY, *sentences.words_of(corpus), *words])


@cache
def tree_recipe(corpus: Path, *words: str) -> Recipe:
    """The recipe of these words for the trees."""
    return config.load_recipe(["+recipe=sst_treelstm", *EVERY, *trees.words_of(corpus), *words])


def run(comm: Comm, folder: Path, name: str, begin_with: Path | None = None) -> str:
    """Train the run in this folder, or go on there from that one's state; returns how it ended, if
    early."""
    leaves = name in LEFT and not begin_with and comm.rank == comm.world_size - 1
    put = {"lsgd.strategy.allreduce.AllReduce": LeavingEarly} if leaves else {}
    root = folder.parent.parent
    if name in TREES:
        made = tree_recipe(root / "trees", *TREES[name])
    else:
        made = recipe(root / "corpus", *RUNS[name])
    made = replace(made, run_dir=str(folder))
    return train_joined(comm, made, put, begin_with)


def main(out: Path) -> None:
    """All runs, on every process of a job, and what one process has left."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        for name in (*RUNS, *TREES):
            run(comm, out / name, name)
        for name, kept in LEFT.items():
            run(comm, out / f"taken-over-{kept}", name, begin_with=out.parent / "1" / name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
