"""Is a recipe its paper's? `python -m lsgd.check +recipe=NAME` builds the run and finds out.

Nothing is trained and no data is needed. What a training would use is built and examined: the
network, its optimizer, the lr of every step, the order of every epoch, the loader. Images come from
torchvision's loader, with which DALI's agrees; for datasets held in memory the recipe's own words
are taken.
"""

from dataclasses import replace

import torch

from lsgd.check import images, network, passes, rate, step
from lsgd.check.finding import Fact, Finding
from lsgd.check.papers import ask
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner
from lsgd.recipe import Recipe

__all__ = ["Fact", "Finding", "ask", "build", "facts", "findings"]


def build(recipe: Recipe) -> Learner:
    """The learner of the run, as a single process on the CPU has it, where apex has no updates."""
    recipe = replace(recipe, optim=replace(recipe.optim, fused="torch"))
    return Learner(recipe, SingleComm(), torch.device("cpu"))


def findings(learner: Learner) -> list[Finding]:
    """A finding for each rule of its paper on the run of this learner, which is not changed."""
    return ask(learner.recipe, facts(learner))


def facts(learner: Learner) -> list[Fact]:
    """All that is found out about the run of this learner."""
    recipe = learner.recipe
    return [
        *images.facts(recipe),
        *network.facts(learner),
        *step.facts(learner),
        *rate.facts(learner),
        *passes.facts(learner),
    ]
