"""The runs that a study plans: each recipe with each seed."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lsgd import config
from lsgd.errors import UsageError
from lsgd.planned import FORBIDDEN_KEYS, PlannedRun
from lsgd.recipe.study import Study

FIXED = FORBIDDEN_KEYS | {
    "recipe": "a study has its recipes; write study=NAME and overrides for all of them",
    "seed": "a study has its seeds; write seeds=[0,1] for some of them",
}
"""The keys that no override of a study may set, with the reason and the fix."""


def planned_runs(study: Study, overrides: Sequence[str]) -> list[PlannedRun]:
    """Return the planned runs of a study: each of its recipes with each seed and these overrides.

    Raises UsageError if an override is not valid for one of the recipes, or gives two recipes the
    same fingerprint.
    """
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key in FIXED:
            raise UsageError(f"'{word}' cannot be overridden in a study: {FIXED[key]}")
    said = [[*overrides, *entry.words] for entry in study.entries]
    recipes = [
        config.load_recipe([entry.recipe_override, *each])
        for entry, each in zip(study.entries, said, strict=True)
    ]
    same: dict[str, str] = {}
    for recipe in recipes:
        other = same.setdefault(recipe.fingerprint, recipe.name)
        if other != recipe.name:
            raise UsageError(
                f"{' '.join(overrides) or study.command_arguments[0]} makes {other} and "
                f"{recipe.name} the same run; leave out that override, or train that run alone "
                "with lsgd.train"
            )
    return [
        PlannedRun(replace(recipe, seed=seed), [f"seed={seed}", *each], entry.file)
        for entry, recipe, each in zip(study.entries, recipes, said, strict=True)
        for seed in study.seeds
    ]


def trained_seeds(study: Study) -> list[int]:
    """Return the seeds of all run folders in runs/trials that belong to recipes of the study."""
    names = {entry.recipe for entry in study.entries}
    seeds = {
        int(found["seed"])
        for folder in Path("runs/trials").glob("*-seed*-*")
        if (found := re.fullmatch(r"(?P<name>.+)-seed(?P<seed>\d+)-\w+", folder.name))
        and found["name"] in names
    }
    return sorted(seeds)
