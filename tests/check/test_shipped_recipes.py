"""Every shipped recipe is what it says it is, found out on the built run."""

import copy
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import pytest
from helpers.composed import compose_recipe

from lsgd import check, config
from lsgd.check import images, learning_rate, network, sampling, step
from lsgd.check.__main__ import table, verdict
from lsgd.check.observation import Observation, RuleResult
from lsgd.check.papers import PAPERS
from lsgd.learner import Learner
from lsgd.recipe import Recipe

pytestmark = pytest.mark.usefixtures("computed_once")
T = TypeVar("T")
NETWORK = ("model", "data", "seed")
KIND = (
    *NETWORK, "optim", "label_smoothing", "metric", "precision", "gradient_compression", "tail",
    "val_batch", "batch_growth", "bn_statistics", "averaging", "loss", "bce_over_classes",
    "evaluation", "batch_schedule", "image_sizes",
)  # fmt: skip
"""Recipes that have these in common differ in minibatch and schedule alone."""
SAMPLED = tuple(
    name for name in KIND if name not in ("optim", "label_smoothing", "gradient_compression")
)
"""Fields on which facts about sampling, evaluation and metric may depend."""


@functools.cache
def shipped(name: str) -> Recipe:
    return compose_recipe(f"+recipe={name}")


def words(recipe: Recipe, names: Sequence[str]) -> str:
    return repr([getattr(recipe, name) for name in names])


TEXTS = {"ptb_small", "conll_bilstm", "conll_bilstm_crf", "sst_treelstm", "sst_childsum"}
"""The recipes whose rules are not those of a paper here, which lsgd.check refuses."""
LONG = {"bs64", "bs128", "lars_bs256", "nus_lars_bs512", "flax_bs512"}
FIRST = {
    min(ladder, key=len)
    for _, each in groupby(config.sorted_recipe_names(), lambda name: re.split(r"_|bs\d", name)[0])
    if (ladder := [name for name in each if name not in LONG])
}
known: dict[tuple[str, str], Any] = {}
"""What was found of each subject, with the fields it depends on, about the first such recipe."""


def once(subject: str, recipe: Recipe, names: Sequence[str], observe: Callable[[], T]) -> T:
    key = subject, words(recipe, names)
    if key not in known:
        known[key] = observe()
    found: T = known[key]
    return found


@functools.cache
def any_learner() -> Learner:
    return check.build_learner(shipped("digits"))


def facts_of_kind(recipe: Recipe) -> tuple[list[Observation], list[Observation]]:
    """Facts about this recipe before and behind the lr, found on the first one of its kind."""
    built = functools.cache(lambda: check.build_learner(recipe))
    of_images = ("data", "inputs", "seed", "evaluation")
    # The sizes and shapes of evaluated images are facts of images alone.
    plain = replace(recipe.evaluation, image_sizes=[], rectangle_batch=0, rectangle_epoch=0)
    alike = replace(recipe, evaluation=plain)
    return (
        [
            *once("images", recipe, of_images, lambda: images.observe(recipe)),
            *once("network", recipe, NETWORK, lambda: network.observe(built())),
            *once("step", alike, KIND, lambda: step.observe(built())),
        ],
        once("sampling", alike, SAMPLED, lambda: sampling.observe(built())),
    )


@functools.cache
def findings(name: str) -> list[RuleResult]:
    """What is found on this recipe: the lr of its steps and its n; the rest is that of its kind."""
    recipe = shipped(name)
    first, last = facts_of_kind(recipe)
    learner = copy.copy(any_learner())
    strategy, workload = copy.copy(learner.strategy), copy.copy(learner.workload)
    learner.recipe = strategy.recipe = recipe
    strategy.hosted, strategy.workload = range(recipe.workers), workload
    ids = np.arange(recipe.data.train_examples)
    workload.example_order = lambda epoch: ids  # n is the same in any order
    own = {
        fact.rule: fact
        for fact in (
            sampling._worker_batch(next(iter(strategy.tasks(0, [0]))).micro_batches),
            sampling._evaluation_epochs(recipe),
            *sampling.observe_settings(recipe),
        )
    }
    last = [own.get(fact.rule, fact) for fact in last]
    return check.apply_rules(recipe, [*first, *learning_rate.observe(learner), *last])


def test_nothing_is_left_out() -> None:
    assert findings("digits") == check.rule_results(any_learner())


@pytest.mark.parametrize(
    "name",
    [
        # All but one of each ladder, whose others differ in minibatch and schedule, and those of
        # hundreds of thousands of steps, of which many have an lr of their own.
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST))
        for name in config.sorted_recipe_names()
        if name not in TEXTS
    ],
)
def test_shipped_recipes_declare_what_deviates(name: str) -> None:
    """What is found on the built run is what the recipe says, no more and no less."""
    recipe = shipped(name)
    found = findings(name)
    assert verdict(recipe, found).startswith(f"{name} follows {PAPERS[recipe.paper].WHO} in ")
    lines = table(recipe, found).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(reason and len(reason) <= 110 for reason in recipe.deviations.values())


def test_rules_about_layers_that_a_network_lacks_are_left_out() -> None:
    """LeNet-5 has neither BN nor residual blocks; all else is asked of it."""
    of_resnet, of_lenet = (
        {each.rule for each in findings(name)} for name in ("fashion_bs64", "fashion_lenet5")
    )
    assert of_lenet < of_resnet
    assert of_resnet - of_lenet == {
        "stride", "last_gamma", "other_gammas", "batchnorm_decay", "running_average"
    }  # fmt: skip


@pytest.mark.slow
def test_declarations_are_the_papers_variants() -> None:
    """What the rows of the tables change, and not the base that they share."""
    own = {"resize", "colour"}
    for change, rule in {
        "no_warmup": "warmup", "constant_warmup": "warmup", "fixed_lr": "scaling",
        "sqrt_lr": "scaling", "half_lr": "reference_lr", "double_lr": "reference_lr",
        "gamma1": "last_gamma", "resnet101": "model", "equation10": "momentum",
    }.items():  # fmt: skip
        assert {*shipped(f"bs8k_{change}").deviations} == own | {rule}
    for name in config.sorted_recipe_names():
        if name.startswith("bs") and "_" not in name:
            assert {*shipped(name).deviations} == own
    for name in ("bs256_full", "bs8k_full"):
        assert verdict(shipped(name), findings(name)).endswith("in all 26 rules")
