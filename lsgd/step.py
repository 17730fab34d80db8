"""The training step, as training, autotune, lsgd.check and the benchmarks make it."""

from collections.abc import Iterator
from typing import Any

from lsgd.job import preemption
from lsgd.learner import Learner
from lsgd.strategy import Task


def train_step(learner: Learner, task: Task, batches: Iterator[Any]) -> None:
    """One task of the run, with the passes of this process, whose batches come next."""
    strategy, workload = learner.strategy, learner.workload
    strategy.read(task, leave=preemption.told())
    for each in task.passes:
        batch = next(batches)
        for part in strategy.parts:
            part.start_pass(each)
        with learner.autocast:
            loss, counts = workload.loss(learner.model, batch, each)
        learner.tally.add(loss, counts)
        strategy.backward(loss)
    strategy.give(task)
