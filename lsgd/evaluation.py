"""Exact evaluation: every example of a set counts once, with any number of processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Union

import torch
from torch import nn

from lsgd.comm import Comm, all_reduce_
from lsgd.inputs import Inputs
from lsgd.inputs.wrapped import inputs_after
from lsgd.job.device import run_compiled_modules_eagerly
from lsgd.job.preemption import LockstepRounds
from lsgd.metric_sums import MetricSums
from lsgd.scores import Scores
from lsgd.workloads import Workload, compute_metrics

if TYPE_CHECKING:  # whoever evaluates a trained model needs no learner
    from lsgd.learner import Learner


@dataclass(frozen=True)
class TrainedModel:
    """A network with loaded weights that is evaluated but not trained."""

    workload: Workload
    model: nn.Module
    comm: Comm
    device: torch.device
    epoch: int | None = None
    """The epoch, from 0, after or in which the model is evaluated; None for the last one."""


EvaluableModel = Union["Learner", TrainedModel]
"""A model that can be evaluated, during training or after it."""

EvaluationProgress = Callable[[str, int, int], None]
"""The type of a progress callback: it gets the set, micro-batches done, micro-batches in all."""


def ignore_progress(split: str, done: int, passes: int) -> None:
    """Do nothing; the default progress callback of an evaluation."""


@torch.inference_mode()
def evaluate(
    learner: EvaluableModel,
    inputs: Inputs,
    sets: Sequence[str] | None = None,
    on_progress: EvaluationProgress = ignore_progress,
) -> dict[str, Scores]:
    """Evaluate a model on all processes; return scores by evaluation set, equal on every process.

    Each example is in one micro-batch of one process, nothing is padded, and integer counts are
    summed over processes, so the counts do not depend on the number of processes or on
    micro-batches, and the loss only up to rounding. The forward pass runs without autocast, even if
    training is in bfloat16, unless the recipe has evaluation.bfloat16. Raises PreemptedError, on
    all processes, at the end of a micro-batch.
    """
    workload, model = learner.workload, learner.model
    if not (splits := workload.evaluation_sets if sets is None else sets):
        return {}
    inputs = inputs_after(inputs, learner.epoch)
    try:
        # Compiling for an evaluation would take longer than it saves.
        with run_compiled_modules_eagerly(), workload.evaluation_mode(model, inputs):
            model.eval()
            return {split: _evaluate_set(learner, inputs, split, on_progress) for split in splits}
    finally:
        model.train()


def _evaluate_set(
    learner: EvaluableModel, inputs: Inputs, split: str, watch: EvaluationProgress
) -> Scores:
    workload, model, comm = learner.workload, learner.model, learner.comm
    passes = workload.evaluation_micro_batches(split, comm.rank, comm.world_size)
    # Process 0 has the most micro-batches; the others take part in its further rounds without any.
    most = len(workload.evaluation_micro_batches(split, 0, comm.world_size))
    rounds = LockstepRounds(comm.start_all_reduce_)
    tally = MetricSums(len(workload.count_names), learner.device)
    watch(split, 0, len(passes))
    for done, (each, batch) in enumerate(zip(passes, inputs.evaluation(passes), strict=True), 1):
        tally.add(*workload.loss(model, batch, each))
        rounds.end_round()
        watch(split, done, len(passes))
    for _ in range(most - len(passes)):
        rounds.end_round()
    rounds.finish()
    return compute_metrics(workload, tally.state(partial(all_reduce_, comm)), split)
