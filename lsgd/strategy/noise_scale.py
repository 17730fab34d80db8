"""Synchronous SGD by all-reduce that also measures the gradient noise scale."""

from torch import Tensor, nn

from lsgd.comm import Comm
from lsgd.metric_sums import MetricSums
from lsgd.recipe import Recipe
from lsgd.rules import noise_scale
from lsgd.strategy import StepTask
from lsgd.strategy.allreduce import AllReduce
from lsgd.workloads import Workload


class NoiseScaleAllReduce(AllReduce):
    """All-reduce strategy that also estimates the gradient noise scale, with bit-equal updates.

    The estimate uses the norm of each parameter's gradient in each micro-batch.
    """

    def __init__(
        self, recipe: Recipe, workload: Workload, model: nn.Module, comm: Comm, tally: MetricSums
    ) -> None:
        super().__init__(recipe, workload, model, comm, tally)
        sums = tally.add_sum(noise_scale.STATE_KEY, noise_scale.SUM_COUNT)
        self.noise = noise_scale.NoiseScaleSums(
            model.parameters(), sums, whole_steps=comm.rank == 0
        )

    def backward(self, loss: Tensor) -> None:
        """Run a micro-batch's backward pass, and measure its gradient for the noise scale."""
        super().backward(loss)
        self.noise.end_micro_batch()

    def _update(self, task: StepTask) -> None:
        # Must come before the optimizer, which may scale or clip the gradients in place.
        sizes = [len(each.examples) for each in task.micro_batches]
        self.noise.end_step(sizes, task.divisor, self.reducer.gradient_norm)
        super()._update(task)
