"""Recipes that a process of tests composes once: Hydra takes longer than most tests do."""

from dataclasses import replace
from functools import cache

from lsgd import config
from lsgd.recipe import Recipe


def composed(*words: str) -> Recipe:
    """The recipe of these words; a copy, so that nothing is kept of what a test worked out."""
    return replace(_loaded(words))


@cache
def _loaded(words: tuple[str, ...]) -> Recipe:
    return config.load_recipe(words)
