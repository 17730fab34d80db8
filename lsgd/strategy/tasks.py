"""Tasks of synchronous strategies, and examples of tickets."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.strategy import StepTask
from lsgd.workloads import Workload


def hosted_workers(recipe: Recipe, world_size: int, rank: int, epoch: int = 0) -> range:
    """Return the workers that a process hosts in an epoch; none if it has servers only."""
    processes, workers = recipe.strategy.worker_processes(world_size), recipe.stage(epoch).workers
    return sampler.contiguous_share(workers, processes, rank) if rank < processes else range(0)


def ticket_batches(
    recipe: Recipe, workload: Workload, epoch: int, ticket: int
) -> list[NDArray[np.int64]]:
    """Return the indices of a ticket's examples, in a batch of n for each gradient of a worker.

    They are its share of the epoch's order: n examples, or n for each local step.
    """
    n = recipe.worker_batch
    size = n * recipe.strategy.batches_per_push
    examples = workload.example_order(epoch)[ticket * size : (ticket + 1) * size]
    return [examples[begin : begin + n] for begin in range(0, len(examples), n)]


def gradient_weight(workload: Workload, examples: NDArray[np.int64]) -> int:
    """Return the sum of these examples' weights, by which their summed gradient is divided."""
    weights = workload.example_weights
    return len(examples) if weights is None else int(weights[examples].sum())


def push_divisors(
    recipe: Recipe, workload: Workload, batches: Iterable[NDArray[np.int64]]
) -> list[int]:
    """Return the divisor of the summed loss of each micro-batch of a push.

    With one gate a worker does not know the other pushes of its update; then the divisor is the
    usual number of examples of an update.
    """
    if recipe.strategy.name == "backup":
        return [recipe.batch_size]
    return [gradient_weight(workload, examples) for examples in batches]


def synchronous_tasks(
    recipe: Recipe, workload: Workload, hosted: range, epoch: int, steps: list[int]
) -> Iterator[StepTask]:
    """Yield a process's tasks (micro-batches) for these synchronous steps of an epoch.

    A step takes the next kn examples of the epoch's order. Tasks have no micro-batches where the
    workers have no examples.
    """
    order, stage, first = (
        workload.example_order(epoch),
        recipe.stage(epoch),
        recipe.first_step(epoch),
    )
    for step in steps:
        of_epoch = step - first
        begin = of_epoch * stage.batch_size
        examples = order[begin : begin + stage.batch_size]
        yield StepTask(
            step,
            divisor=gradient_weight(workload, examples),
            # In a short last step only the first workers have examples.
            active_workers=-(-len(examples) // stage.worker_batch),
            micro_batches=sampler.step_micro_batches(
                order,
                epoch=epoch,
                step=of_epoch,
                workers=stage.workers,
                worker_batch=stage.worker_batch,
                hosted=hosted,
                workers_per_pass=recipe.micro_batch_workers,
            ),
        )
