"""When a target is reached: steps that others have needed, times the step that is planned."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsgd.plan.step import Machine, StepTime
from lsgd.plan.table import counts
from lsgd.recipe import Recipe
from lsgd.rules.convergence import Reference, reference_at


@dataclass(frozen=True)
class Arrival:
    """One minibatch on one number of GPUs, from the first step to the target."""

    reference: Reference
    """The epochs to the target with this minibatch."""
    steps: float
    step: StepTime

    @property
    def hours(self) -> float:
        """Hours of the training steps."""
        return self.steps * self.step.seconds / 3600

    @property
    def gpu_hours(self) -> float:
        """Hours times GPUs, which is what is paid for."""
        return self.hours * self.step.gpus


def steps_to(reference: Reference, examples: int) -> float:
    """The steps to the target, of a dataset of so many examples.

    >>> round(steps_to(Reference(32768, mean=56.0, std=0.0, n=8), 1281167))
    2189
    """
    return reference.mean * examples / reference.batch_size


def minibatches(pruned: Sequence[Reference], worker_batch: int) -> list[Reference]:
    """The minibatches to choose from, in order: the points, and 1, 2, 4, … workers between them.

    Only those that whole workers of `worker_batch` images make up, and none outside of the points.
    """
    smallest, largest = pruned[0].batch_size, pruned[-1].batch_size
    doubled = [worker_batch << power for power in range(largest.bit_length())]
    sizes = {each.batch_size for each in pruned if each.batch_size % worker_batch == 0}
    sizes |= {size for size in doubled if smallest <= size <= largest}
    found = [reference_at(pruned, size) for size in sorted(sizes)]
    return [each for each in found if each]


def arrivals(
    machine: Machine, recipe: Recipe, pruned: Sequence[Reference], most: int
) -> list[Arrival]:
    """Every minibatch on every number of GPUs up to `most`, but for GPUs without a worker.

    Of the recipe only the network, its images, precision and worker_batch enter.
    """
    found = []
    for reference in minibatches(pruned, recipe.worker_batch):
        sized = replace(recipe, workers=reference.batch_size // recipe.worker_batch)
        steps = steps_to(reference, recipe.data.train_examples)
        found += [
            Arrival(reference, steps, machine.step(sized, gpus))
            for gpus in counts(machine.gpus_per_server, most)
            if gpus <= min(most, sized.workers)
        ]
    return found


def first(found: Sequence[Arrival]) -> Arrival:
    """The one that arrives first; of equal ones that with the fewest GPUs."""
    return min(found, key=lambda each: (each.hours, each.step.gpus))


def cheapest(found: Sequence[Arrival]) -> Arrival:
    """The one with the fewest GPU hours; of equal ones that which arrives first."""
    return min(found, key=lambda each: (each.gpu_hours, each.hours))
