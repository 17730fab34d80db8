"""Every shipped recipe is what it says it is, found out on the built run."""

import copy
import functools
import gc
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from lsgd import check, config, sampler
from lsgd.check import images, network, passes, rate, step
from lsgd.check.__main__ import table, verdict
from lsgd.learner import Learner
from lsgd.recipe import Recipe


@functools.cache
def shipped(name: str) -> Recipe:
    return config.load_recipe([f"+recipe={name}"])


@functools.lru_cache(maxsize=3)  # a ResNet-50 with gradients is 200 MB
def built(key: str, name: str) -> Learner:
    """What recipes share that differ in schedule and workers alone; `key` says the rest."""
    gc.collect()
    return check.build(shipped(name))


def shared(recipe: Recipe) -> Learner:
    key = fields(recipe, "model", "data", "optim", "seed", "precision", "gradient_compression")
    like = copy.copy(built(key, first.setdefault(key, recipe.name)))
    like.recipe, like.hosted = recipe, range(recipe.workers)
    return like


first: dict[str, str] = {}
CURVE = ("schedule", "data", "workers", "worker_batch", "epochs", "tail")
"""What the lr of a step depends on."""
PASSES = ("data", "model", "optim", "seed", "workers", "worker_batch", "workers_per_pass", "tail",
          "val_batch", "epochs")  # fmt: skip
"""What the images of a step and of an evaluation depend on, and the weights of a seed."""


def fields(recipe: Recipe, *names: str) -> str:
    return json.dumps({name: value for name, value in asdict(recipe).items() if name in names})


@pytest.fixture(scope="module")
def quickly() -> Any:
    """What several recipes have alike is asked once: their images, networks, orders and curves."""
    with pytest.MonkeyPatch.context() as patch:

        def once(owner: Any, name: str, key: Callable[[Any], str]) -> None:
            real, known = getattr(owner, name), {}

            def found(of: Any) -> Any:
                if key(of) not in known:
                    known[key(of)] = real(of)
                return known[key(of)]

            patch.setattr(owner, name, found)

        patch.setattr(sampler, "epoch_order", functools.cache(sampler.epoch_order))
        once(images, "findings", lambda recipe: fields(recipe, "data"))
        once(network, "findings", lambda it: fields(it.recipe, "data", "model"))
        once(step, "findings", lambda it: fields(it.recipe, "data", "model", "optim", "schedule"))
        once(passes, "findings", lambda it: fields(it.recipe, *PASSES))
        once(rate, "_curve", lambda recipe: fields(recipe, *CURVE))
        yield


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("name", config.recipes())
def test_shipped_recipes_declare_what_deviates(name: str) -> None:
    """What is found on the built run is what the recipe says, no more and no less."""
    recipe = shipped(name)
    found = check.findings(shared(recipe))
    assert verdict(recipe, found).startswith(f"{name} follows the paper in ")
    lines = table(found, recipe.deviations).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(reason and len(reason) <= 110 for reason in recipe.deviations.values())


def test_declarations_are_the_papers_variants() -> None:
    """What the rows of the tables change, and not the base that they share."""
    own = {"resize", "colour"}
    for change, rule in {
        "no_warmup": "warmup", "constant_warmup": "warmup", "fixed_lr": "scaling",
        "sqrt_lr": "scaling", "half_lr": "reference_lr", "double_lr": "reference_lr",
        "gamma1": "last_gamma", "resnet101": "model", "equation10": "momentum",
    }.items():  # fmt: skip
        assert {*shipped(f"bs8k_{change}").deviations} == own | {rule}
    for name in config.recipes():
        if name.startswith("bs") and "_" not in name:
            assert {*shipped(name).deviations} == own
