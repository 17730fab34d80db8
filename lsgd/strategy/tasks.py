"""The tasks of a strategy in which each update waits for all k workers."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.strategy import Task
from lsgd.workloads import Workload


def hosted_workers(recipe: Recipe, world_size: int, rank: int, epoch: int = 0) -> range:
    """The workers of a process in an epoch; the last processes may have servers only."""
    processes, workers = recipe.strategy.worker_processes(world_size), recipe.stage(epoch).workers
    return sampler.share(workers, processes, rank) if rank < processes else range(0)


def ticket_examples(
    recipe: Recipe, workload: Workload, epoch: int, ticket: int
) -> NDArray[np.int64]:
    """The examples of a ticket: the next ones of the epoch's order after those of the ticket
    before, n of them or as many as its local steps take."""
    size = recipe.worker_batch * recipe.strategy.push_steps
    return workload.order(epoch)[ticket * size : (ticket + 1) * size]


def ticket_batches(
    recipe: Recipe, workload: Workload, epoch: int, ticket: int
) -> list[NDArray[np.int64]]:
    """The examples of a ticket by the gradients that a worker computes of them, each of n."""
    examples, n = ticket_examples(recipe, workload, epoch, ticket), recipe.worker_batch
    return [examples[begin : begin + n] for begin in range(0, len(examples), n)]


def weight(workload: Workload, examples: NDArray[np.int64]) -> int:
    """What these examples add to the divisor of a gradient."""
    weights = workload.weights
    return len(examples) if weights is None else int(weights[examples].sum())


def synchronous_tasks(
    recipe: Recipe, workload: Workload, hosted: range, epoch: int, steps: list[int]
) -> Iterator[Task]:
    """The part of a process with these workers in each step of the epoch; a step takes the next kn
    examples of its order. A process whose workers have none has tasks without passes.
    """
    order, stage, first = workload.order(epoch), recipe.stage(epoch), recipe.first_step(epoch)
    for step in steps:
        of_epoch = step - first
        begin = of_epoch * stage.batch_size
        examples = order[begin : begin + stage.batch_size]
        yield Task(
            step,
            divisor=weight(workload, examples),
            # In a short last step only the first workers have examples.
            active_workers=-(-len(examples) // recipe.worker_batch),
            passes=sampler.step_passes(
                order,
                epoch=epoch,
                step=of_epoch,
                workers=stage.workers,
                worker_batch=recipe.worker_batch,
                hosted=hosted,
                workers_per_pass=recipe.pass_workers,
            ),
        )
