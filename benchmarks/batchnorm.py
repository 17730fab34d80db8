"""Benchmark of the cost of per-worker BN statistics: `python -m benchmarks.batchnorm`."""

import sys
from functools import partial

import torch

from benchmarks.command import as_command
from benchmarks.comparison import Comparison, StepFunction, compare, step_of
from benchmarks.scripts import with_plain_batchnorm
from lsgd.comm import Comm
from lsgd.errors import UsageError
from lsgd.learner import Learner
from lsgd.recipe import Recipe

PER_WORKER, PLAIN = "per-worker BN", "plain BN"


def learners(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, Learner]:
    """Return one Learner with per-worker BN and one with plain BN over each micro-batch.

    Raises UsageError if a micro-batch has a single worker, since both are then the same.
    """
    if recipe.micro_batch_workers == 1:
        raise UsageError(
            "workers_per_pass=1 leaves one worker in a pass, so that both are the same; write 2 or "
            "more"
        )
    plain = Learner(recipe, comm, device)
    with_plain_batchnorm(plain.model)
    # nn.BatchNorm2d updates its running statistics itself.
    plain.strategy.carried_states = ()
    return {PER_WORKER: Learner(recipe, comm, device), PLAIN: plain}


def make_steps(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, StepFunction]:
    """Return lsgd's training step with per-worker BN and with plain BN, by candidate name."""
    return {name: step_of(learner) for name, learner in learners(recipe, comm, device).items()}


BATCHNORM = Comparison(
    name="batchnorm",
    about="""\
What does it cost that workers do not share BN statistics? A whole training step of lsgd, against
the same step with nn.BatchNorm2d over all images of a micro-batch. Images are synthetic and on the
device already.

  python -m benchmarks.batchnorm +recipe=fashion_resnet20 workers=8 workers_per_pass=8
  python -m benchmarks.batchnorm +recipe=fashion_bs1k workers_per_pass=8
""",
    measured_step=PER_WORKER,
    baseline_step=PLAIN,
    max_time_ratio=1.05,
    make_steps=make_steps,
)


main = as_command(partial(compare, BATCHNORM))

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
