"""A cache of composed recipes, since Hydra takes longer than most tests."""

import hashlib
import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from lsgd import config
from lsgd.config import load_recipe
from lsgd.errors import UsageError
from lsgd.override_syntax import key_and_value
from lsgd.recipe import Recipe
from lsgd.recipe.dry_run import make_dry_run
from lsgd.recipe.overrides import config_groups

SHARED = "LSGD_TEST_COMPOSED"
"""The environment variable with the folder in which pytest-xdist's workers share configurations."""
CONFIG_GROUPS = frozenset((*config_groups(), "recipe"))
RUN_DIR = re.compile(r"run_dir=(/[\w.-]+)+", re.ASCII)
"""A path that YAML reads as it is; recipes that differ in it alone are composed once."""


def compose_recipe(*words: str) -> Recipe:
    """Return a new copy of the recipe composed from these overrides, composed once per process.

    It is the recipe of config.load_recipe, without some of its explanations of errors. A copy has
    no cached properties of earlier tests.
    """
    with_paths = [word for word in words if "/" in word or word.startswith("run_dir=")]
    if len(with_paths) == 1 and RUN_DIR.fullmatch(with_paths[0]):
        # Nothing else names a file, whose content might have changed since.
        others = tuple(word for word in words if word not in with_paths)
        return replace(_loaded(others), run_dir=with_paths[0].partition("=")[2])
    return replace(_loaded(words))


def compose_or_explain(words: Sequence[str], *, is_tuned: bool = False) -> Recipe:
    """Return the recipe of config.load_recipe, or raise its UsageError; for commands in a test."""
    try:
        return load_recipe(words, is_tuned=True) if is_tuned else compose_recipe(*words)
    except UsageError:
        return load_recipe(words, is_tuned=is_tuned)


@cache
def _loaded(words: tuple[str, ...]) -> Recipe:
    """Compose a recipe; Hydra sees its config groups alone, once for all values of its fields."""
    words = tuple(config._canonical(words))
    groups = tuple(word for word in words if key_and_value(word)[0] in CONFIG_GROUPS)
    fields = [word for word in words if word not in groups]
    if "data=folder" in groups or any(map(_needs_hydra, fields)):
        return load_recipe(words)
    recipe = config.recipe_from_mapping(_groups_composed(groups), *fields)
    if recipe.target and not config._is_as_published(recipe, words):
        recipe = replace(recipe, target=None)
    return make_dry_run(recipe) if recipe.rehearse else recipe


def _needs_hydra(word: str) -> bool:
    """Return whether an override adds, removes or takes back a key, or sets a mapping."""
    return word.startswith(("+", "~", "deviations.")) or key_and_value(word)[1].startswith("{")


@cache
def _groups_composed(groups: tuple[str, ...]) -> dict[str, Any]:
    """Compose a configuration, or load it if another process of these tests has composed it."""
    if not (folder := os.environ.get(SHARED)):
        return config._compose(groups)
    file = Path(folder, hashlib.sha256(repr(groups).encode()).hexdigest())
    if not file.exists():
        part = file.with_name(f"{file.name}-{os.getpid()}")
        part.write_bytes(pickle.dumps(config._compose(groups)))
        part.rename(file)
    made: dict[str, Any] = pickle.loads(file.read_bytes())
    return made
