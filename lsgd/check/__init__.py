"""Is a recipe the paper's? `python -m lsgd.check +recipe=NAME` builds the run and finds out.

Nothing is trained and no data is needed. What a training would use is built and examined: the
network, its optimizer, the lr of every step, the order of every epoch, the loader. Images come from
torchvision's loader, with which DALI's agrees; for datasets held in memory the recipe's own words
are taken.
"""

import torch

from lsgd.check import images, network, passes, rate, step
from lsgd.check.finding import Finding
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe

__all__ = ["Finding", "build", "findings"]


def build(recipe: Recipe) -> Learner:
    """The learner of the run, as a single process on the CPU has it."""
    return Learner(recipe, SingleComm(), torch.device("cpu"))


def findings(learner: Learner) -> list[Finding]:
    """A finding for each rule of the paper on the run of this learner, which is not changed.

    Rules that the run has no occasion to follow are left out: images that are not resized have no
    resize filter.
    """
    recipe = learner.recipe
    return [
        *images.findings(recipe),
        *network.findings(learner),
        *step.findings(learner),
        *rate.findings(learner),
        *passes.findings(learner),
    ]
