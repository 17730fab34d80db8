"""Checks of a recipe against its paper: `python -m lsgd.check recipe=NAME`.

Nothing is trained and no data is needed. The checks build what a training run would use and examine
it: the network, its optimizer, the lr of every step, the minibatches, the random crops and colours.
Tests prove what no recipe can change, such as the scale of the gradient or the pixels of a loader.
"""

from dataclasses import replace

import torch

from lsgd.check import images, learning_rate, network, sampling, step
from lsgd.check.observation import Observation, RuleResult
from lsgd.check.papers import apply_rules
from lsgd.comm.single import SingleComm
from lsgd.learner import Learner, without_tf32
from lsgd.models.pretrained import with_pretrained_weights
from lsgd.recipe import InputsSettings, Recipe
from lsgd.start_weights import read_start_weights

__all__ = ["Observation", "RuleResult", "apply_rules", "build_learner", "observe", "rule_results"]


def build_learner(recipe: Recipe) -> Learner:
    """Build a recipe's model, optimizer and strategy in one CPU process, without apex and dataset.

    Where the recipe has apex's fused updates, torch's are used, and float32 in place of tf32;
    classes are balanced by made-up labels. The weights that it starts from are read, so that the
    rules of initialisation are applied to them.
    """
    comm = SingleComm()
    recipe = with_pretrained_weights(recipe, comm)
    recipe = replace(recipe, optim=replace(recipe.optim, fused="torch"))
    start = read_start_weights(recipe, comm)
    built = replace(without_tf32(recipe), inputs=InputsSettings(loader="synthetic"))
    learner = Learner(built, comm, torch.device("cpu"), start=start.tensors)
    learner.recipe = recipe  # whose precision and images have rules
    return learner


def rule_results(learner: Learner) -> list[RuleResult]:
    """Apply each rule of the recipe's paper to an untrained learner and return the results."""
    return apply_rules(learner.recipe, observe(learner))


def observe(learner: Learner) -> list[Observation]:
    """Observe all properties of a learner and its run for which papers have rules."""
    recipe = learner.recipe
    return [
        *images.observe(recipe),
        *network.observe(learner),
        *step.observe(learner),
        *learning_rate.observe(learner),
        *sampling.observe(learner),
    ]
