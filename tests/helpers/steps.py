"""Training steps of a run on one process of a job, which may be a thread, and their errors."""

import io
from typing import Any

import torch
from torch import nn

from lsgd.comm import Comm
from lsgd.errors import DivergedError, PreemptedError
from lsgd.learner import Learner
from lsgd.recipe import Recipe
from lsgd.rules.batchnorm import worker_batch_norms
from lsgd.run.checkpoint import Checkpoint
from lsgd.step import train_step

CPU = torch.device("cpu")


def train(
    made: Recipe, comm: Comm, *, until: int | None = None, begin: Any = None, settle: bool = False
) -> Learner:
    """Train the steps before `until`, synchronizing each epoch or each step; return the learner."""
    learner = Learner(made, comm, CPU)
    if begin is not None:
        learner.restore(begin)
    inputs = learner.workload.inputs()
    stop = made.total_steps if until is None else until
    for epoch, steps in made.epochs_from(learner.next_step):
        for task in learner.strategy.tasks(epoch, [step for step in steps if step < stop]):
            train_step(learner, task, inputs.train(task.micro_batches))
            learner.strategy.poll()
            if settle:
                learner.strategy.synchronize()
        if stop > steps[-1]:
            learner.strategy.synchronize()
            learner.metric_sums.clear()
    return learner


def plain_optimizer(made: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return a plain torch optimizer of a model for the recipe, without weight decay for BN."""
    still = {id(p) for norm in worker_batch_norms(model) for p in norm.parameters()}
    if not made.optim.decay_bias:
        still |= {id(p) for name, p in model.named_parameters() if "bias" in name}
    parts = [[p for p in model.parameters() if (id(p) in still) == are] for are in (False, True)]
    decays = made.optim.weight_decay, 0
    groups = [{"params": part, "weight_decay": w} for part, w in zip(parts, decays, strict=True)]
    if made.optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=0.0)
    return torch.optim.SGD(groups, lr=0.0, momentum=0.9, nesterov=True)


def copied(saved: Checkpoint) -> Checkpoint:
    """Return a copy of the checkpoint, saved by torch.save and loaded again."""
    file = io.BytesIO()
    torch.save(vars(saved), file)
    return Checkpoint(**torch.load(io.BytesIO(file.getvalue()), weights_only=True))


def train_with_nan_loss(
    comm: Comm, made: Recipe, step: int, *, last: bool = False
) -> tuple[str, Learner]:
    """Train with a NaN loss in one step; return the error with the next step, and the learner.

    The loss is NaN on all processes, or with `last` only on the last one.
    """
    learner = Learner(made, comm, CPU)
    inputs, loss = learner.workload.inputs(), learner.workload.loss
    try:
        for task in learner.strategy.tasks(0, list(range(made.steps_per_epoch))):
            if task.step == step and (not last or comm.rank == comm.world_size - 1):
                learner.workload.loss = lambda *words: (
                    loss(*words)[0] * torch.nan,
                    loss(*words)[1],
                )
            train_step(learner, task, inputs.train(task.micro_batches))
            learner.workload.__dict__.pop("loss", None)
            learner.strategy.poll()
        learner.checkpoint()
    except DivergedError as error:
        return f"{learner.next_step}: {error}", learner
    return "no end", learner


def train_until_preempted(comm: Comm, made: Recipe, step: int) -> tuple[int, Checkpoint]:
    """Preempt a run by a stop request on its last process; return its next step and checkpoint.

    The request comes at `step`.
    """
    learner = Learner(made, comm, CPU)
    inputs, strategy = learner.workload.inputs(), learner.strategy
    for task in strategy.tasks(0, list(range(made.steps_per_epoch))):
        strategy.begin(task, stop_requested=comm.rank == comm.world_size - 1 and task.step == step)
        batches = inputs.train(task.micro_batches)
        for each in task.micro_batches:
            for part in strategy.carried_states:
                part.start_micro_batch(each)
            loss, counts = learner.workload.loss(learner.model, next(batches), each)
            learner.metric_sums.add(loss, counts)
            strategy.backward(loss)
        strategy.step(task)
        try:
            strategy.poll()
        except PreemptedError:
            return learner.next_step, learner.checkpoint()
    raise AssertionError("not told")
