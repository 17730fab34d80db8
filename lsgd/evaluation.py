"""Exact evaluation: every example of a set once, at any number of processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import nn

from lsgd.comm import Comm, sum_
from lsgd.inputs import Inputs
from lsgd.job.preemption import Rounds
from lsgd.tally import Scores, Tally
from lsgd.workloads import Workload, scores


class Evaluated(Protocol):
    """A model on this process's device, with the workload that evaluates it: a Learner is."""

    @property
    def workload(self) -> Workload:
        """The evaluation sets, and what is counted in them."""

    @property
    def model(self) -> nn.Module:
        """The network, with whatever running statistics it is to be evaluated with."""

    @property
    def comm(self) -> Comm:
        """The processes that share the examples."""

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with weights from elsewhere, which no Learner trains."""

    workload: Workload
    model: nn.Module
    comm: Comm
    device: torch.device


EvaluationProgress = Callable[[str, int, int], None]
"""A function that learns how many passes over an evaluation set this process has made, of how many:
set, passes done, passes."""


def unwatched(split: str, done: int, passes: int) -> None:
    """Take note of no progress."""


@torch.inference_mode()
def evaluate(
    learner: Evaluated,
    inputs: Inputs,
    sets: Sequence[str] | None = None,
    watch: EvaluationProgress = unwatched,
) -> dict[str, Scores]:
    """Loss and rates over these evaluation sets, or all of the workload; the same on every process.

    Each example is in one pass of one process, nothing is padded, and integer counts are summed, so
    the rates do not depend on the number of processes or on the passes. The forward pass is without
    autocast, also where training is in bfloat16, unless the recipe has evaluation.bfloat16. Raises
    Preempted, on all processes, at the end of a pass.
    """
    workload, model = learner.workload, learner.model
    if not (splits := workload.sets if sets is None else sets):
        return {}
    try:
        # Eager, since compiling for an evaluation takes longer than it saves.
        with torch.compiler.set_stance("force_eager"), workload.evaluated(model, inputs):
            model.eval()
            return {split: _evaluate_set(learner, inputs, split, watch) for split in splits}
    finally:
        model.train()


def _evaluate_set(
    learner: Evaluated, inputs: Inputs, split: str, watch: EvaluationProgress
) -> Scores:
    workload, model, comm = learner.workload, learner.model, learner.comm
    passes = workload.evaluation(split, comm.rank, comm.world_size)
    # Process 0 has the most passes; the others make the rounds that they lack without examples.
    most = len(workload.evaluation(split, 0, comm.world_size))
    rounds = Rounds(comm.start_sum_)
    tally = Tally(len(workload.counts), learner.device)
    watch(split, 0, len(passes))
    for done, (each, batch) in enumerate(zip(passes, inputs.evaluation(passes), strict=True), 1):
        tally.add(*workload.loss(model, batch, each))
        rounds.end_round()
        watch(split, done, len(passes))
    for _ in range(most - len(passes)):
        rounds.end_round()
    rounds.finish()
    return scores(workload, tally.state(partial(sum_, comm)))
