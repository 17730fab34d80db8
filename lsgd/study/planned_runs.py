"""The runs that a study plans: each recipe with each seed."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from lsgd import config
from lsgd.errors import UsageError
from lsgd.override_syntax import canonical, format_override
from lsgd.planned import FORBIDDEN_KEYS, PlannedRun, has_ended
from lsgd.recipe import Recipe
from lsgd.recipe.study import Entry, Study
from lsgd.report.groups import load_shipped_recipe

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
        load_shipped_recipe(entry.file or entry.recipe, *each)
        for entry, each in zip(study.entries, said, strict=True)
    ]
    same: dict[tuple[str, str | None], str] = {}
    for entry, recipe in zip(study.entries, recipes, strict=True):
        other = same.setdefault((recipe.fingerprint, entry.start), recipe.name)
        if other != recipe.name:
            raise UsageError(
                f"{' '.join(overrides) or canonical(study.command_arguments[0])} makes {other} and "
                f"{recipe.name} the same run; leave out that override, or train that run alone "
                "with lsgd.train"
            )
    return [
        _planned_run(entry, replace(recipe, seed=seed), [f"seed={seed}", *each])
        for entry, recipe, each in zip(study.entries, recipes, said, strict=True)
        for seed in study.seeds
    ]


def _planned_run(entry: Entry, recipe: Recipe, words: list[str]) -> PlannedRun:
    """Return the planned run of an entry with one seed, and with the start weights that it has.

    Before the run that it starts from has ended, its recipe lacks them, and the overrides do not.
    """
    if not entry.start:
        return PlannedRun(recipe, words, entry.file)
    source = _source(entry.start, recipe.seed)
    words = [*words, format_override("model.start", source.folder), "model.new_head=true"]
    if has_ended(source.saved_run):
        recipe = config.load_recipe([entry.recipe_override, *words])
    return PlannedRun(recipe, words, entry.file)


@cache
def _source(recipe: str, seed: int) -> PlannedRun:
    """Return the run of a recipe from which another one starts, without overrides of a study."""
    words = [f"seed={seed}"]
    return PlannedRun(config.load_recipe([format_override("recipe", recipe), *words]), words)


def check_sources(study: Study, seeds: Collection[int]) -> None:
    """Raise UsageError unless all runs have finished from which runs of these seeds start."""
    for entry in study.entries:
        for seed in seeds if entry.start else ():
            run = _source(entry.start or "", seed).saved_run
            if run is None or not (run.finished and has_ended(run)):
                raise UsageError(
                    f"study {study.name} starts {entry.recipe} from the run of {entry.start} with "
                    f"seed {seed}, which {f'is at: {run.state}' if run else 'does not exist'}; "
                    "train that one first"
                )


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
