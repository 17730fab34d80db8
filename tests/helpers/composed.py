"""A cache of composed recipes, since Hydra takes longer than most tests."""

from dataclasses import replace
from functools import cache

from lsgd import config
from lsgd.recipe import Recipe


def compose_recipe(*words: str) -> Recipe:
    """Return a new copy of the recipe composed from these overrides, composed once per process.

    A copy has no cached properties of earlier tests.
    """
    return replace(_loaded(words))


@cache
def _loaded(words: tuple[str, ...]) -> Recipe:
    return config.load_recipe(words)
