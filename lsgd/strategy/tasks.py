"""The tasks of a strategy in which each update waits for all k workers."""

from collections.abc import Iterator

from lsgd.recipe import Recipe
from lsgd.rules import sampler
from lsgd.strategy import Task
from lsgd.workloads import Workload


def hosted_workers(recipe: Recipe, world_size: int, rank: int) -> range:
    """The workers of a process; the last processes may have servers only."""
    processes = recipe.strategy.worker_processes(world_size)
    return sampler.share(recipe.workers, processes, rank) if rank < processes else range(0)


def synchronous_tasks(
    recipe: Recipe, workload: Workload, hosted: range, epoch: int, steps: list[int]
) -> Iterator[Task]:
    """The part of a process with these workers in each step of the epoch; a step takes the next kn
    examples of its order. A process whose workers have none has tasks without passes.
    """
    order, weights = workload.order(epoch), workload.weights
    for step in steps:
        of_epoch = step % recipe.steps_per_epoch
        begin = of_epoch * recipe.batch_size
        examples = order[begin : begin + recipe.batch_size]
        yield Task(
            step,
            divisor=len(examples) if weights is None else int(weights[examples].sum()),
            # In a short last step only the first workers have examples.
            active_workers=-(-len(examples) // recipe.worker_batch),
            passes=sampler.step_passes(
                order,
                epoch=epoch,
                step=of_epoch,
                workers=recipe.workers,
                worker_batch=recipe.worker_batch,
                hosted=hosted,
                workers_per_pass=recipe.pass_workers,
            ),
        )
