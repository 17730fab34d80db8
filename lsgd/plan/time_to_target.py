"""The modelled time to a target accuracy: published step counts times the modelled step time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsgd.errors import UsageError
from lsgd.plan.step import ModelledCluster, StepTime
from lsgd.plan.table import gpu_counts
from lsgd.recipe import Recipe
from lsgd.rules.convergence import ReferenceStatistics, reference_at


@dataclass(frozen=True)
class TargetPlan:
    """The modelled time and cost to a target accuracy, for one minibatch and number of GPUs."""

    reference: ReferenceStatistics
    """The epochs to the target with this minibatch."""
    steps: float
    step: StepTime

    @property
    def hours(self) -> float:
        """The modelled hours of the training steps to the target."""
        return self.steps * self.step.seconds / 3600

    @property
    def gpu_hours(self) -> float:
        """The modelled GPU hours to the target, by which the cost is computed."""
        return self.hours * self.step.gpus


def steps_to(reference: ReferenceStatistics, examples: int) -> float:
    """Convert published epochs to a target into steps on a dataset of `examples` examples.

    >>> round(steps_to(ReferenceStatistics(32768, mean=56.0, std=0.0, n=8), 1281167))
    2189
    """
    return reference.mean * examples / reference.batch_size


def minibatches(
    pruned: Sequence[ReferenceStatistics], worker_batch: int
) -> list[ReferenceStatistics]:
    """Return a plan's candidate minibatches: published points and powers of two between.

    They ascend. Candidates are multiples of `worker_batch` within the range of the points; between
    points they have 1, 2, 4, … workers.
    """
    smallest, largest = pruned[0].batch_size, pruned[-1].batch_size
    doubled = [worker_batch << power for power in range(largest.bit_length())]
    sizes = {each.batch_size for each in pruned if each.batch_size % worker_batch == 0}
    sizes |= {size for size in doubled if smallest <= size <= largest}
    found = [reference_at(pruned, size) for size in sorted(sizes)]
    return [each for each in found if each]


def plan_to_target(
    machine: ModelledCluster, recipe: Recipe, pruned: Sequence[ReferenceStatistics], most: int
) -> list[TargetPlan]:
    """Model the time to a target of every minibatch on every count of up to `most` GPUs.

    Options that leave a GPU without a worker are omitted. Only the recipe's network, images,
    precision and worker_batch are used. Raises UsageError if no minibatch fits.
    """
    found = []
    for reference in minibatches(pruned, recipe.worker_batch):
        sized = replace(recipe, workers=reference.batch_size // recipe.worker_batch)
        steps = steps_to(reference, recipe.data.train_examples)
        found += [
            TargetPlan(reference, steps, machine.step(sized, gpus))
            for gpus in gpu_counts(machine.gpus_per_server, most)
            if gpus <= min(most, sized.workers)
        ]
    if not found:
        raise UsageError(
            f"no minibatch from {pruned[0].batch_size} to {pruned[-1].batch_size} gives workers of "
            f"worker_batch={recipe.worker_batch} to {machine.gpus_per_server} GPUs; "
            "write a smaller worker_batch= or gpus="
        )
    return found


def fastest(found: Sequence[TargetPlan]) -> TargetPlan:
    """Return the plan (minibatch and GPU count) with the shortest time to the target.

    Of equal ones it is the one with the fewest GPUs.
    """
    return min(found, key=lambda each: (each.hours, each.step.gpus))


def cheapest(found: Sequence[TargetPlan]) -> TargetPlan:
    """Return the plan (minibatch and GPU count) with the fewest GPU hours to the target.

    Of equal ones it is the fastest.
    """
    return min(found, key=lambda each: (each.gpu_hours, each.hours))
