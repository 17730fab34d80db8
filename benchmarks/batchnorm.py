"""What does it cost that workers do not share BN statistics? `python -m benchmarks.batchnorm`."""

import sys
from collections.abc import Sequence

import torch

from benchmarks.comparison import Comparison, StepFunction, compare, step_of
from benchmarks.scripts import with_plain_batchnorm
from lsgd.comm import Comm
from lsgd.errors import Refused
from lsgd.job.command import run_command
from lsgd.learner import Learner
from lsgd.recipe import Recipe

PER_WORKER, PLAIN = "per-worker BN", "plain BN"


def learners(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, Learner]:
    """A learner with statistics over each worker's images, and one with those of a whole pass.

    Raises Refused if a pass has a single worker.
    """
    if recipe.pass_workers == 1:
        raise Refused(
            "workers_per_pass=1 leaves one worker in a pass, so that both are the same; write 2 or "
            "more"
        )
    plain = Learner(recipe, comm, device)
    with_plain_batchnorm(plain.model)
    # PyTorch's layers keep their running statistics themselves.
    plain.strategy.parts = ()
    return {PER_WORKER: Learner(recipe, comm, device), PLAIN: plain}


def steps(recipe: Recipe, comm: Comm, device: torch.device) -> dict[str, StepFunction]:
    """lsgd's step of each of the learners."""
    return {name: step_of(learner) for name, learner in learners(recipe, comm, device).items()}


BATCHNORM = Comparison(
    name="batchnorm",
    about="""\
What does it cost that workers do not share BN statistics? A whole training step of lsgd, against
the same step with nn.BatchNorm2d over all images of a pass. Images are made up, and on the device
already.

  python -m benchmarks.batchnorm +recipe=fashion_resnet20 workers=8 workers_per_pass=8
  python -m benchmarks.batchnorm +recipe=fashion_bs1k workers_per_pass=8
""",
    one=PER_WORKER,
    other=PLAIN,
    goal=1.05,
    steps=steps,
)


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return run_command(lambda: compare(BATCHNORM, argv))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
