"""Is a recipe the paper's? `python -m lsgd.check +recipe=NAME` builds the run and finds out.

Nothing is trained and no data is needed. The objects that a training would use are built and asked:
the network, its optimizer, the lr of every step, the order of every epoch, the loader. Images are
asked of torchvision's loader, with which DALI's agrees; of datasets held in memory the recipe says
what becomes of an image.
"""

import torch

from lsgd.check import images, network, passes, rate, step
from lsgd.check.finding import Finding
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe

__all__ = ["Finding", "build", "findings"]


def build(recipe: Recipe) -> Learner:
    """Everything that a step of the run changes, as one process on the CPU has it."""
    return Learner(recipe, SingleComm(), torch.device("cpu"))


def findings(learner: Learner) -> list[Finding]:
    """What the run of this learner does about each rule of the paper; the learner stays as it is.

    Only rules that the run has an occasion to follow are there: images that are not resized have no
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
