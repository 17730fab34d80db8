"""The runs of a tagger, as a test makes them alone and as every process of a job does.

    torchrun --nproc-per-node N tests/helpers/tagging_jobs.py OUT

OUT/../corpus has the sentences. Each run goes through lsgd.train.train as it is and leaves its
folder below OUT; one launch makes all of them, since starting costs most.
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

from helpers.joined_run import train_joined
from helpers.sentences import words_of
from lsgd import config
from lsgd.comm import Comm, joined
from lsgd.recipe import PADDINGS, CommSettings, Recipe
from lsgd.strategy.allreduce import AllReduce

# 7 steps an epoch, the last of 2 + 2 + 2 + 0 sentences.
EVERY = [
    "+recipe=conll_bilstm_crf", "precision=float64", "workers=4", "worker_batch=2", "tail=keep",
    "epochs=3", "model.embedding=6", "model.width=5", "model.dropout=0.5", "data.word_dropout=0.2",
    "optim=sgd", "schedule.reference_batch=8", "schedule.reference_lr=0.3", "workers_per_pass=4",
    "val_batch=4", "log_steps=1", "device=cpu",
]  # fmt: skip
SOFTMAX = ["model.name=bilstm", "data.order=by_length"]
RUNS: dict[str, list[str]] = {
    **{padding: [f"padding={padding}"] for padding in PADDINGS},
    "one-per-pass": ["workers_per_pass=1"],
    "two-per-pass": ["workers_per_pass=2", "padding=batch"],
    "softmax": SOFTMAX,
    "softmax-packed": [*SOFTMAX, "padding=packed", "workers_per_pass=1"],
    "adam": ["optim=adam", "schedule.reference_lr=0.01"],
    "left": [],
}
"""The runs, by the names of their folders, with the words that make them."""
TOLD = 8
"""The step of the run in which a process is told to leave: the second of the second epoch."""


class LeavingEarly(AllReduce):
    """A strategy on a process that gets a signal in a step."""

    def read(self, task: Any, *, leave: bool) -> None:
        if task.step == TOLD:
            os.kill(os.getpid(), signal.SIGTERM)
        super().read(task, leave=leave)


@cache
def recipe(corpus: Path, *words: str) -> Recipe:
    """The recipe of these words for the corpus."""
    return config.load_recipe([*EVERY, *words_of(corpus), *words])


def run(comm: Comm, folder: Path, name: str, begin_with: Path | None = None) -> str:
    """Train the run in this folder, or go on there from that one's state; returns how it ended, if
    early."""
    leaves = name == "left" and not begin_with and comm.rank == comm.world_size - 1
    put = {"lsgd.strategy.allreduce.AllReduce": LeavingEarly} if leaves else {}
    made = replace(recipe(folder.parent.parent / "corpus", *RUNS[name]), run_dir=str(folder))
    return train_joined(comm, made, put, begin_with)


def main(out: Path) -> None:
    """All runs, on every process of a job, and what one process has left."""
    with joined(CommSettings(timeout=60), torch.device("cpu")) as comm:
        for name in RUNS:
            run(comm, out / name, name)
        run(comm, out / "taken-over", "left", begin_with=out.parent / "1" / "left")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
