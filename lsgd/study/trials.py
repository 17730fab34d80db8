"""Which trials a study has."""

from collections.abc import Sequence
from dataclasses import replace

from lsgd import config
from lsgd.errors import Refused
from lsgd.recipe.study import Study
from lsgd.trials.trial import FIXED_OF_TRIALS, Trial

FIXED = FIXED_OF_TRIALS | {
    "recipe": "a study has its recipes; write +study=NAME and words that hold for all of them",
    "seed": "a study has its seeds; write seeds=[0,1] for some of them",
}
"""What a word must not say, and why."""


def trials(study: Study, words: Sequence[str]) -> list[Trial]:
    """All of them, entry by entry; raises Refused if the words do not suit one of the recipes."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if key in FIXED:
            raise Refused(f"'{word}' cannot be said to a study: {FIXED[key]}")
    said = [[*words, *entry.words] for entry in study.entries]
    recipes = [
        config.load_recipe([f"+recipe={entry.recipe}", *each])
        for entry, each in zip(study.entries, said, strict=True)
    ]
    same: dict[str, str] = {}
    for recipe in recipes:
        other = same.setdefault(recipe.fingerprint, recipe.name)
        if other != recipe.name:
            raise Refused(
                f"{' '.join(words) or f'+study={study.name}'} makes {other} and {recipe.name} the "
                "same run; leave out the word that does, or train that run alone with lsgd.train"
            )
    return [
        Trial(replace(recipe, seed=seed), [f"seed={seed}", *each])
        for recipe, each in zip(recipes, said, strict=True)
        for seed in study.seeds
    ]
