"""The training step, shared by lsgd.train, autotuning and the benchmarks."""

from collections.abc import Iterator
from typing import Any

from lsgd.job import preemption
from lsgd.learner import Learner
from lsgd.strategy import StepTask


def train_step(learner: Learner, task: StepTask, batches: Iterator[Any]) -> None:
    """Run a training step: forward and backward of this process's micro-batches, then the update.

    The next `batches` belong to these micro-batches.
    """
    strategy, workload = learner.strategy, learner.workload
    strategy.begin(task, stop_requested=preemption.stop_requested())
    for each in task.micro_batches:
        batch = next(batches)
        for part in strategy.carried_states:
            part.start_micro_batch(each)
        with learner.autocast:
            loss, counts = workload.loss(learner.model, batch, each)
        learner.metric_sums.add(loss, counts)
        strategy.backward(loss)
    strategy.step(task)
