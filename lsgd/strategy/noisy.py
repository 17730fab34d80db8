"""Synchronous SGD by all-reduce that measures its gradient noise scale."""

from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.recipe import Recipe
from lsgd.rules import noise
from lsgd.strategy import Task
from lsgd.strategy.allreduce import AllReduce
from lsgd.tally import Tally
from lsgd.workloads import Workload


class NoisyAllReduce(AllReduce):
    """The updates of all-reduce, bit by bit; beside them the noise scale, from the norm of each
    parameter's gradient in each pass."""

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: Tally
    ) -> None:
        super().__init__(recipe, workload, model, comm, tally)
        sums = tally.beside(noise.KEY, noise.SUMS)
        self.noise = noise.NoiseScale(model.parameters(), sums, whole_steps=comm.rank == 0)

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients, and look at what is added."""
        super().backward(loss)
        self.noise.end_pass()

    def _update(self, task: Task) -> None:
        # Before an optimizer that scales or clips changes the gradients.
        sizes = [len(each.examples) for each in task.passes]
        self.noise.end_step(sizes, task.divisor, self.reducer.gradient_norm)
        super()._update(task)
